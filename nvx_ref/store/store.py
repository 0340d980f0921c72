"""The store: one private directory per sandbox beneath a root."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvx_ref.errors import NotFound, Refused
from nvx_ref.platform import files
from nvx_ref.steps import ignore
from nvx_ref.store import lock, names
from nvx_ref.store.locked import LockedStore
from nvx_ref.store.names import CallerFiles
from nvx_ref.store.reader import Reader

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline
    from nvx_ref.steps import Observer

_DEFAULT = CallerFiles()


class Store:
    """Sandboxes in the directories of one root (620.scope1.a).

    Args:
        root: The directory that holds them; made absolute, links in it are followed, nothing is created yet.
        caller_files: The names in each directory that are the caller's.
        observer: Called with each step once it has happened.

    Raises:
        Refused: The root is empty, not UTF-8 (records couldn't name it), or holds a NUL.
    """

    def __init__(self, root: str, caller_files: CallerFiles = _DEFAULT, *, observer: Observer = ignore) -> None:
        self.root = os.path.join(os.getcwd(), root)
        self.caller_files = caller_files
        self.observer = observer
        try:
            valid = bool(root) and "\0" not in self.root and bool(self.root.encode())
        except UnicodeEncodeError:
            valid = False
        if not valid:
            raise Refused(
                "a store's root is a nonempty UTF-8 path",
                subject=ascii(self.root),
                hint="choose another directory",
                detail="root",
            )

    def path(self, name: str) -> str:
        """Return the path of a sandbox's directory, whether it exists or not.

        Raises:
            Refused: The name isn't ``[A-Za-z0-9][A-Za-z0-9._-]{0,63}``.
        """
        return os.path.join(self.root, names.check_sandbox(name))

    def lock_provision(self, name: str, *, deadline: Deadline) -> LockedStore:
        """Lock a sandbox in order to provision it; creates its directory, also if a removal deletes it meanwhile.

        Whether it is provisioned already is for the caller to ask (:meth:`LockedStore.read_configuration`). Released
        without a configuration, the lock file goes, and the directory as well if it was created here.

        Args:
            name: The sandbox.
            deadline: By when; tried every 25 ms.

        Raises:
            Busy: Another transition was in progress until the deadline.
            Refused: The name isn't one, or something else is there. It is untouched.
        """
        return self._locked(lock.take_provision(self.path(name), self.caller_files.configuration, deadline), deadline)

    def lock_existing(self, name: str, *, deadline: Deadline) -> LockedStore:
        """Lock a provisioned sandbox; creates nothing where there is none (620.scope6.e).

        Args:
            name: The sandbox.
            deadline: By when; tried every 25 ms.

        Raises:
            NotFound: It isn't provisioned, or was removed while this waited, even if it has been provisioned anew
                since.
            Busy: Another transition was in progress until the deadline.
            Refused: The name isn't one, or something else is there. It is untouched.
        """
        return self._locked(lock.take_existing(self.path(name), self.caller_files.configuration, deadline), deadline)

    def lock_removal(self, name: str, *, deadline: Deadline) -> LockedStore:
        """Lock a sandbox in order to remove it: as :meth:`lock_existing`, and also one without configuration.

        That is what a removal or a provision leaves when it is cut short; :meth:`LockedStore.remove` finishes it.

        Raises:
            NotFound: There is no directory, or it was removed while this waited.
            Busy: Another transition was in progress until the deadline.
            Refused: The name isn't one, or something else is there. It is untouched.
        """
        return self._locked(lock.take_existing(self.path(name), None, deadline), deadline)

    def peek(self, name: str) -> Reader:
        """Open a sandbox to be read, without its lock; nothing is created, waited for or changed.

        Raises:
            NotFound: There is no directory. One without configuration isn't provisioned either:
                :meth:`Reader.read_configuration` tells.
            Refused: The name isn't one, or something else is there.
        """
        path = self.path(name)
        try:
            return Reader(files.open_private(path), self.caller_files)
        except NotFound:
            raise lock.not_provisioned(path) from None

    def _locked(self, held: lock.Held, deadline: Deadline) -> LockedStore:
        return LockedStore(held, self.caller_files, self.observer, deadline)
