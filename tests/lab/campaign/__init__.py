"""The fault campaign: real producers and workers, faults drawn from a seed, and a judge that trusts neither.

``python -m tests.lab.campaign --seed 1 --minutes 4``. Producers record their pushes and the answers (`producing`),
and tasks record their runs (`project.tasks`), each process in a separate file. `faults` causes the faults that
`schedule` lists, `recovery` measures the time of the recovery, and `checker` compares the files with the queue.
"""
