"""What is known of a job besides its recordings, and how recordings come to be.

Belongs here: reading what the job was told to be (job.yaml, host files), starting a recording, reading the
counters of a node. Does not belong here: reading recordings (``readers``) and judging anything
(``analysis``).
"""

from __future__ import annotations
