"""The fault campaign: real producers and workers, faults drawn from a seed, and a judge that trusts neither.

``python -m tests.lab.campaign --seed 1 --minutes 4``. Producers write down what they asked for and what they were told
(`producing`), tasks what they did (`project.tasks`), each process in a file of its own; `faults` breaks things as
`schedule` says, `recovery` measures how long it takes to mend, and `checker` compares the files with the queue.
"""
