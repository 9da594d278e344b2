"""Methods that others have published, as their papers describe them, judged on the same recordings.

Belongs here: the methods (one file each), what they are given to see, and the experiments of the comparison
(``python -m benchmarks.rivals``). None of their code is used: what is compared is the idea, given the same
start and end of every call, exact phase labels and a threshold that was tuned on other seeds. A method whose
published figure is not met within 0.05 on the paper's set-up is labelled "not reproduced" in the table.
"""
