"""A helper without data as a process of its own: questions on its input, answers on its output, nothing else.

    python member_process.py STORE NAME [WRITE]

With WRITE it is killed, by itself and without any goodbye, before its so manieth write reaches the disk.
"""

import os
import sys

from kernfed.federation.summing.tasks import helper_site
from kernfed.site.policy import Policy


def main() -> None:
    store, name, write = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0
    count, sync = 0, os.fsync

    def counted(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == write:
            os._exit(9)
        sync(descriptor)

    os.fsync = counted
    site = helper_site(name, store, policy=Policy.open())
    while size := int.from_bytes(sys.stdin.buffer.read(8), "little"):
        answer = site.answer(sys.stdin.buffer.read(size))
        sys.stdout.buffer.write(len(answer).to_bytes(8, "little") + answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
