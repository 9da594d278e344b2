"""Goes onto ``PYTHONPATH`` of the processes of a job: what every Python of theirs imports at its start.

Belongs here: ``sitecustomize.py`` alone. Nothing else, for each name in this folder hides a module of the
same name from every script of the job.
"""
