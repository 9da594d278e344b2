"""What a GPU of a model should have, where no template says it: NVLinks and their speed, PCIe, power.

Source of each row: NVIDIA's data sheet of the product (form factor, NVLink generation and total bandwidth,
PCIe generation, maximum thermal design power), and for the speed of one link what nvidia-smi nvlink -s prints
on it. A model that is not listed has no expectations: nothing is found by them, and nothing is accused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    """Expectations of one GPU model; None where there are none. ``link_gbs`` GB/s of one NVLink in one
    direction.

    ``contained``: memory errors are contained or not (Xid 94, 95) and rows are remapped: Ampere data-centre
    and later."""

    name: str
    links: int | None = None
    link_gbs: float | None = None
    pcie: int | None = None
    watts: int | None = None
    switched: bool = False
    contained: bool = False


_MODELS = (
    Model("V100-SXM", 6, 25.781, 3, 300),
    Model("A100-SXM", 12, 25.0, 4, 400, switched=True, contained=True),
    Model("A800-SXM", 8, 25.0, 4, 400, switched=True, contained=True),
    Model("A100-PCI", None, None, 4, 300, contained=True),
    Model("A100 80GB PCI", None, None, 4, 300, contained=True),
    Model("H100 80GB HBM3", 18, 26.562, 5, 700, switched=True, contained=True),
    Model("H800", 8, 26.562, 5, 700, switched=True, contained=True),
    Model("H20", 18, 26.562, 5, 500, switched=True, contained=True),
    Model("H200 NVL", None, None, 5, 600, contained=True),
    Model("H200", 18, 26.562, 5, 700, switched=True, contained=True),
    Model("H100 PCI", None, None, 5, 350, contained=True),
    Model("H100 NVL", None, None, 5, 400, contained=True),
    Model("B200", 18, 53.125, 5, 1000, switched=True, contained=True),
    Model("L40S", 0, None, 4, 350, contained=True),
    Model("L40", 0, None, 4, 300, contained=True),
    Model("L20", 0, None, 4, 275, contained=True),
    Model("A10", 0, None, 4, 150, contained=True),
    Model("L4", 0, None, 4, 72, contained=True),
    Model("T4", 0, None, 3, 70),
)


def model_of(product: str) -> Model:
    """The row whose name stands in the product's; one without expectations where none does."""
    words = f"{product.replace('NVIDIA', ' ').replace('_', ' ').strip()} "
    for model in _MODELS:
        if words.startswith((f"{model.name} ", f"{model.name}-", f"Tesla {model.name} ")) or (
            len(model.name) > 4 and model.name in words
        ):
            return model
    return Model(product or "GPU")
