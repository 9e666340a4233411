"""The keys of this process, and the encryption of the values of a row.

Nothing is encrypted while ENCRYPTION_KEYS is empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from django.utils.module_loading import import_string

from django_durable_tasks import conf, process_state
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.exceptions import InvalidArguments, InvalidOption
from django_durable_tasks.rules.encryption import (
    EncryptedValue,
    Keyring,
    StorageLocation,
    missing,
    read_keys,
    stored_value,
)

_READ_AGAIN_AFTER = 60.0
_EMPTY: tuple[Any, ...] = (None, [], {})


class CurrentKeyring:
    """The keyring of the current settings. A function that returns the keys is called once,
    and again after a minute if a key is missing.
    """

    def __init__(self) -> None:
        self._settings: conf.Settings | None = None
        self._ring: Keyring | None = None
        self._read_at = 0.0

    def get(self) -> Keyring | None:
        """Return the keyring; None if nothing is encrypted."""
        settings = conf.settings()
        if settings is not self._settings:
            self._read(settings)
        return self._ring

    def get_with(self, key_id: str) -> Keyring | None:
        """Return the keyring, read again if it does not have this key."""
        ring = self.get()
        expired = time.monotonic() - self._read_at > _READ_AGAIN_AFTER
        if expired and (ring is None or key_id not in ring):
            self._read(conf.settings())
        return self._ring

    def _read(self, settings: conf.Settings) -> None:
        given = settings.ENCRYPTION_KEYS
        entries = _from_callable(given) if isinstance(given, str) else list(given)
        self._ring = _keyring(entries) if entries else None
        self._settings, self._read_at = settings, time.monotonic()


def _keyring(entries: Sequence[str]) -> Keyring:
    try:
        return Keyring(read_keys(entries))
    except InvalidOption as invalid:
        raise InvalidSetting(str(invalid)) from None


def _from_callable(path: str) -> Sequence[str]:
    try:
        found: Callable[[], Sequence[str]] = import_string(path)
    except ImportError as error:
        raise InvalidSetting(
            f"DURABLE_TASKS['ENCRYPTION_KEYS'] is {path!r}, which cannot be imported: {error}"
        ) from error
    return list(found())


def current_key_id() -> str | None:
    """Return the id of the key that encrypts; None if nothing is encrypted."""
    ring = process_state.of(CurrentKeyring).get()
    return None if ring is None else ring.current


def encrypted(value: Any, place: StorageLocation) -> Any:
    """Return the value as an EncryptedValue; unchanged if it is empty or encrypted already, or if
    nothing is encrypted.

    Raises InvalidArguments for a plain value that looks like an encrypted one.
    """
    if isinstance(value, EncryptedValue):
        return value
    ring = process_state.of(CurrentKeyring).get()
    if ring is not None and value not in _EMPTY:
        return ring.encrypt(value, place)
    if stored_value(value) is not None:
        raise InvalidArguments(
            f"{place.column} has the form of an encrypted value: '$encrypted' is reserved."
        )
    return value


def decrypted(value: Any, place: StorageLocation) -> Any:
    """Return a stored value in plain form. Raises EncryptionKeyMissing or DecryptionFailed."""
    found = stored_value(value)
    if found is None:
        return value
    found.check_form(place)
    ring = process_state.of(CurrentKeyring).get_with(found.key_id)
    if ring is None:
        raise missing(found.key_id, place)
    return ring.decrypt(found, place)
