"""What storage raises. Every message is fit for a user: it names things, never absolute paths."""

import errno


class StorageError(Exception):
    """Base of everything storage raises on purpose."""


class NotFound(StorageError):
    """There is no such thing."""


class Conflict(StorageError):
    """The request contradicts what is stored: a taken name, an illegal transition, a use."""


class Invalid(StorageError):
    """A value that cannot be stored: a malformed name or cursor, text or JSON that is none."""


class Corrupt(StorageError):
    """Stored bytes are not what was written, or were never ours."""


class NoSpace(StorageError):
    """The disk is full. What was stored before is untouched."""


class Busy(StorageError):
    """Another writer held the database for longer than the busy timeout."""


class SchemaTooNew(StorageError):
    """The database was written by a later version of nightowl."""


class FolderLocked(StorageError):
    """Another process uses this data folder."""


def is_no_space(error: BaseException | None) -> bool:
    """True for the operating system's ways of saying that a disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
