"""Memory of the GPUs: errors that were corrected, that were not, rows that were remapped, the InfoROM."""

from __future__ import annotations

from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.counters import Growth
from megatrace.bot.gpus import gpus, place_of
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.model.finding import Severity
from megatrace.readers.tool_table import read_table
from megatrace.units import NS_PER_S, format_duration

RETIRED = 60
"""Retired pages from which a card (V100 and older, which hold 64) is replaced."""
DAY_S = 86_400.0
"""Seconds: lost data is told of for a day, or until the GPU was reset."""
SINGLE_PER_HOUR = 10_000.0
BANKS_LOW = 1


@check(
    "GPU-06",
    summary="uncorrectable memory errors of a GPU since the last look",
    subject="GPU",
    severity="P1",
    step="A4",
    timeout_s=20,
    must=True,
)
def uncorrectable(look: Look) -> Iterator[Problem]:
    """Growth of the volatile uncorrectable ECC counters.

    A double-bit error has destroyed data of whoever used it. On Ampere and later the driver contains it (Xid
    94) or not (Xid 95) and says what to do (Xid 154), so those decide; the counter alone is P1: the GPU is
    reset when the job has ended. A level without growth says nothing: it stays until the driver is loaded
    anew.

    Source: `ECC Errors / Volatile` of `nvidia-smi -q`. Threshold: growth above 0, because each one is lost
    data. Remedy: reset the GPU at the end of the job; replace it if they come back."""
    known = 0
    for gpu in gpus(look):
        count = gpu.fact.number("ecc_volatile_uncorrectable")
        if count is None:
            continue
        known += 1
        growth = look.grown(f"gpu.{gpu.place}.ecc.uncorrectable", count, DAY_S)
        # A counter at zero was reset, and with it the GPU: what was lost is lost, and nothing is to be done.
        if growth is not None and growth.amount > 0 and count > 0:
            yield look.fail(
                f"{gpu.name}: {growth.amount:.0f} uncorrectable memory errors {_within(growth)}",
                device=gpu.place,
                evidence=[
                    f"the counter stands at {count:.0f}; on this GPU Xid 94, 95 or 154 decide what follows"
                ]
                if gpu.model.contained
                else [f"the counter stands at {count:.0f}"],
                remedy="reset the GPU when the job has ended; replace it if they come back",
            )
    if not known:
        raise Skipped("no GPU counts memory errors (no ECC)")
    look.said = f"none new on {known} GPUs"


def _within(growth: Growth) -> str:
    return f"within {format_duration(max(growth.seconds, 1.0) * NS_PER_S)}"


@check(
    "GPU-07",
    summary="many corrected memory errors of a GPU",
    subject="GPU",
    severity="P2",
    step="A0",
    timeout_s=20,
    observe=True,
)
def corrected(look: Look) -> Iterator[Problem]:
    """The rate of corrected ECC errors.

    Each is harmless; a burst of them costs bandwidth and foretells uncorrectable ones. Source: `ECC Errors /
    Volatile` of `nvidia-smi -q`. Threshold: 10,000 an hour, because healthy GPUs show tens in their life.
    Remedy: burn-in at the next idle time."""
    for gpu in gpus(look):
        count = gpu.fact.number("ecc_volatile_corrected")
        growth = None if count is None else look.grown(f"gpu.{gpu.place}.ecc.corrected", count, 3600)
        limit = look.limit("per_hour", SINGLE_PER_HOUR)
        if growth is not None and growth.exceeds(limit):
            yield look.warn(
                f"{gpu.name}: {growth.per_hour:,.0f} corrected memory errors an hour",
                device=gpu.place,
                remedy="burn it in when the node is idle; replace it if the rate rises",
            )


@check(
    "GPU-08",
    summary="a row remap that waits for a reset of the GPU",
    subject="GPU",
    severity="P1",
    step="A4",
    period_s=300,
    timeout_s=20,
    must=True,
)
def remap_pending(look: Look) -> Iterator[Problem]:
    """Whether a GPU has marked a row of its memory for replacement by a spare one.

    The running job is not affected; the next one may be, because the faulty row is used until the reset.
    Source: `Remapped Rows / Pending` of `nvidia-smi -q` (pages and `Pending Page Blacklist` before Ampere).
    Threshold: Yes. Remedy: reset the GPU when the job has ended. No need to stop the job, nor to replace the
    GPU."""
    for gpu in gpus(look):
        if "yes" in (gpu.fact.word("remap_pending").lower(), gpu.fact.word("retired_pending").lower()):
            rows = gpu.fact.number("remap_uncorrected") or gpu.fact.number("retired_double") or 0
            yield look.fail(
                f"{gpu.name}: a memory row (or page) waits for its replacement: the GPU needs a reset",
                device=gpu.place,
                evidence=[f"{rows:.0f} were replaced after uncorrectable errors so far"],
                remedy="reset the GPU when the job has ended; do not drain now, no replacement",
            )


@check(
    "GPU-09",
    summary="a row remap that failed: the spare rows are used up",
    subject="GPU",
    severity="P0",
    step="A8",
    period_s=300,
    timeout_s=20,
    must=True,
)
def remap_failed(look: Look) -> Iterator[Problem]:
    """Whether a GPU could not replace a faulty row of its memory.

    From then on every job that touches that row fails. Source: `Remapping Failure Occurred` of `nvidia-smi
    -q` (also Xid 64). Threshold: Yes. Remedy: drain and replace the GPU."""
    for gpu in gpus(look):
        if gpu.fact.word("remap_failure").lower() == "yes" or gpu.yes("ecc errors/unrepairable memory"):
            yield look.fail(
                f"{gpu.name}: a memory row could not be remapped: its spare rows are used up",
                device=gpu.place,
                evidence=[f"serial {gpu.serial}"] if gpu.serial else (),
                remedy="drain the node and open a replacement case (RMA) for the GPU",
            )


@check(
    "GPU-10",
    summary="memory banks with few or no spare rows left",
    subject="GPU",
    severity="P2",
    step="A8",
    period_s=3600,
    timeout_s=20,
)
def spare_rows(look: Look) -> Iterator[Problem]:
    """The histogram of spare rows of each memory bank.

    A bank without spare rows fails at its next error. Source: `Bank Remap Availability Histogram` of
    `nvidia-smi -q`. Threshold: any bank with none is P1, any with low is P2, because new GPUs have all banks
    at max. Remedy: plan the replacement."""
    for gpu in gpus(look):
        none = gpu.number("histogram/none", "row remapper histogram none") or 0
        low = gpu.number("histogram/low", "row remapper histogram low") or 0
        if none or low:
            yield look.warn(
                f"{gpu.name}: {none:.0f} memory banks have no spare row left, {low:.0f} have few",
                Severity.P1 if none else Severity.P2,
                device=gpu.place,
                remedy="plan the replacement of the GPU",
            )


@check(
    "GPU-11",
    summary="retired memory pages of an older GPU",
    subject="GPU",
    severity="P1",
    step="A8",
    period_s=3600,
    timeout_s=20,
)
def retired_pages(look: Look) -> Iterator[Problem]:
    """Retired pages of GPUs before Ampere. Source: `Retired Pages` of `nvidia-smi -q`. Threshold: 60, because
    a card holds 64 and fails then. Remedy: open a replacement case."""
    for gpu in gpus(look):
        pages = (gpu.fact.number("retired_single") or 0) + (gpu.fact.number("retired_double") or 0)
        if pages >= look.limit("pages", RETIRED):
            yield look.fail(
                f"{gpu.name}: {pages:.0f} retired memory pages of 64",
                device=gpu.place,
                remedy="drain the node and open a replacement case (RMA) for the GPU",
            )


@check(
    "GPU-12",
    summary="the threshold of uncorrectable SRAM errors is exceeded",
    subject="GPU",
    severity="P1",
    step="A8",
    period_s=3600,
    timeout_s=20,
)
def sram(look: Look) -> Iterator[Problem]:
    """The GPU's own verdict on its caches. Source: `SRAM Threshold Exceeded` of `nvidia-smi -q`. Threshold:
    Yes, set by the vendor. Remedy: replace the GPU."""
    for gpu in gpus(look):
        if gpu.yes("sram threshold exceeded"):
            yield look.fail(
                f"{gpu.name}: uncorrectable SRAM errors exceed the vendor's threshold",
                device=gpu.place,
                evidence=[f"serial {gpu.serial}"] if gpu.serial else (),
                remedy="drain at the end of the job and open a replacement case (RMA)",
            )


@check(
    "GPU-20",
    summary="memory error correction is off",
    subject="GPU",
    severity="P1",
    step="A4",
    kind="configuration",
    period_s=3600,
    timeout_s=20,
)
def ecc_mode(look: Look) -> Iterator[Problem]:
    """Whether ECC is on. Without it a flipped bit becomes a wrong gradient that nobody sees. Source: `ECC
    Mode` of `nvidia-smi -q`. Threshold: Disabled, now or after the next reset, on a card that has it. Remedy:
    `nvidia-smi -e 1`, then a reset."""
    for gpu in gpus(look):
        now = gpu.get("ecc mode/current", "ecc mode/current ecc")
        later = gpu.get("ecc mode/pending", "ecc mode/pending ecc")
        if "Disabled" in (now, later):
            yield look.fail(
                f"{gpu.name}: memory error correction is {'off' if now == 'Disabled' else 'on and off after a reset'}",
                device=gpu.place,
                remedy="nvidia-smi -e 1, then reset the GPU at the end of the job",
            )


@check(
    "GPU-23",
    summary="a GPU's InfoROM is corrupted",
    subject="GPU",
    severity="P2",
    step="A8",
    period_s=3600,
    timeout_s=20,
)
def inforom(look: Look) -> Iterator[Problem]:
    """The warning that nvidia-smi prints below everything else, where it is easily overlooked.

    The board's own memory of serial number, configuration and error counts is damaged; it still computes.
    Source: `WARNING: infoROM is corrupted`. Threshold: any. Remedy: plan to re-flash or replace the board.
    """
    facts = read_table(look.output("nvidia-smi", timeout_s=15))
    index = {place_of(fact.device): int(fact.number("index") or 0) for fact in facts if fact.name == "row"}
    look.said = f"{len(index)} GPUs in the table"
    for fact in facts:
        if fact.name == "inforom":
            place = place_of(fact.device)
            number = f"gpu{index[place]} " if place in index else ""
            yield look.warn(
                f"{number}({place}): its InfoROM is corrupted",
                device=place,
                evidence=[fact.text],
                remedy="plan to re-flash or replace the board",
            )
