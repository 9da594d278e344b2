"""The job of a suspected GPU: a folder of its own, because a program that is started by its path finds its
neighbours before the standard library."""
