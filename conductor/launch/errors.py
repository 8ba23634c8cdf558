"""Errors of `up` and `demo`. Each ends the command; they have no code, since a person reads them
and no wire carries them.

CommandFailed (kvstore.service)
└── LaunchError      names what cannot be had, and the fix
    ├── ChildDied    a process ended that should run on; has the end of its log
    ├── TimedOut     something did not get ready, or come to rest, in time
    ├── Unreachable  a service of the cluster cannot be talked to
    └── Refused      a service answered, with an error
"""

from __future__ import annotations

from moontide.kvstore.service import CommandFailed


class LaunchError(CommandFailed):
    pass


class ChildDied(LaunchError):
    pass


class TimedOut(LaunchError):
    pass


class Unreachable(LaunchError):
    pass


class Refused(LaunchError):
    pass
