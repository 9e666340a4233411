"""A minimal web process: opens a transaction, waits until all others have opened theirs, and calls
a task in it.

``python -m tests.processes.pooled_caller FOLDER NUMBER``
"""

import sys
from pathlib import Path

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.db import transaction  # noqa: E402

from tests.project import tasks  # noqa: E402
from tests.waiting import until  # noqa: E402

CALLS = 3


def main(folder: Path, number: int) -> None:
    """Call the task in several transactions, each after all processes have opened theirs."""
    for turn in range(CALLS):
        with transaction.atomic():
            User.objects.exists()  # from here on the transaction occupies a connection of the pool
            (folder / f"{turn}-{sys.argv[3]}").touch()
            until(lambda: len(list(folder.glob(f"{turn}-*"))) == number, within=60)  # noqa: B023
            tasks.add.delay(1, 2)
            tasks.add.apply_async((1, 2), countdown=60)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
