"""AES-256-GCM encryption of the values of a row, and the keys of this process."""

from __future__ import annotations

import base64
import functools
import importlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.utils.module_loading import import_string

from django_durable_tasks import conf, process_state
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.exceptions import (
    DecryptionFailed,
    EncryptionKeyMissing,
    InvalidArguments,
)

# AES-256-GCM encryption of JSON values, bound to their place in the database.
#
# The stored form is ``{"$encrypted": 1, "key": <key id>, "data": <base64 of nonce and
# ciphertext>}``. The associated data are the tenant, the table, the column and the row, so that a
# ciphertext that was copied to another place does not decrypt. Requires the extra
# ``[encryption]``.


MARK = "$encrypted"
MIXED = "*"
"""The key id of a row whose values are encrypted with different keys."""
_MEMBERS = frozenset({MARK, "key", "data"})
_VERSION, _NONCE, _KEY_BYTES = 1, 12, 32
_ID_MAX = 40
_ID = re.compile(r"[A-Za-z0-9._-]{1,40}")


class StorageLocation(NamedTuple):
    """Where a value is stored."""

    tenant_id: int
    table: str
    column: str
    row: str

    def associated_data(self) -> bytes:
        """Return the bytes that are authenticated together with the ciphertext."""
        return json.dumps([str(part) for part in self]).encode()


@dataclass(frozen=True, slots=True)
class EncryptedValue:
    """A value as it is stored. It is never shown or stored in place of the value."""

    envelope: Mapping[str, Any]

    @property
    def key_id(self) -> str:
        """The id of the key with which it is encrypted."""
        return str(self.envelope.get("key", ""))[:_ID_MAX]

    def check_form(self, place: StorageLocation) -> None:
        """Raise DecryptionFailed unless the stored form is the one that is written."""
        envelope = self.envelope
        if envelope.keys() != _MEMBERS or envelope[MARK] != _VERSION:
            raise DecryptionFailed(
                f"{place.column} of {place.table} {place.row} has {MARK!r} and is no encrypted"
                " value of this version: the value was changed. Restore the row."
            )

    def __repr__(self) -> str:
        return f"<encrypted with key {self.key_id!r}>"


class Keyring:
    """The keys by their ids; the first one encrypts, all decrypt."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = {key_id: _aead()(key) for key_id, key in keys.items()}
        self.current = next(iter(keys))

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    def encrypt(self, value: Any, place: StorageLocation) -> EncryptedValue:
        """Encrypt a JSON value with the first key."""
        nonce = os.urandom(_NONCE)
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        plain = text.encode("utf-8", "surrogatepass")
        sealed = self._keys[self.current].encrypt(nonce, plain, place.associated_data())
        data = base64.b64encode(nonce + sealed).decode("ascii")
        return EncryptedValue({MARK: _VERSION, "key": self.current, "data": data})

    def decrypt(self, value: EncryptedValue, place: StorageLocation) -> Any:
        """Return the JSON value. Raises EncryptionKeyMissing or DecryptionFailed."""
        value.check_form(place)
        cipher = self._keys.get(value.key_id)
        if cipher is None:
            raise missing(value.key_id, place)
        invalid_tag = importlib.import_module("cryptography.exceptions").InvalidTag
        try:
            data = base64.b64decode(str(value.envelope["data"]), validate=True)
            plain = cipher.decrypt(data[:_NONCE], data[_NONCE:], place.associated_data())
        except (invalid_tag, ValueError):
            raise DecryptionFailed(
                f"{place.column} of {place.table} {place.row} cannot be decrypted with key"
                f" {value.key_id!r}: the value was changed or copied from another row, or another"
                " key has this id. Restore the row or the key."
            ) from None
        return json.loads(plain.decode("utf-8", "surrogatepass"))


def missing(key_id: str, place: StorageLocation) -> EncryptionKeyMissing:
    """Return the error for a value whose key this process does not have."""
    return EncryptionKeyMissing(
        f"{place.column} of {place.table} {place.row} is encrypted with key {key_id!r}, which this"
        " process does not have. Add it to DURABLE_TASKS['ENCRYPTION_KEYS'] and restart."
    )


def stored_value(value: Any) -> EncryptedValue | None:
    """Return the encrypted value that this JSON value represents; None if it is a plain value.

    Each object with the reserved member is one, also in another form: as plain value a changed one
    would be passed to the function.
    """
    if isinstance(value, EncryptedValue):
        return value
    if isinstance(value, dict) and MARK in value:
        return EncryptedValue(value)
    return None


@functools.cache
def _aead() -> Any:
    try:
        return importlib.import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
    except ImportError as error:
        raise InvalidSetting(
            "DURABLE_TASKS['ENCRYPTION_KEYS'] needs the package cryptography: pip install"
            " 'django-durable-tasks[encryption]'."
        ) from error


# Nothing is encrypted while ENCRYPTION_KEYS is empty.


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
        entries = settings.ENCRYPTION_KEYS
        if isinstance(entries, str):
            try:
                function: Callable[[], Sequence[str]] = import_string(entries)
            except ImportError as error:
                raise InvalidSetting(
                    f"DURABLE_TASKS['ENCRYPTION_KEYS'] is {entries!r}, which cannot be imported:"
                    f" {error}"
                ) from error
            entries = list(function())
        keys: dict[str, bytes] = {}
        for entry in entries:
            key_id, _colon, text = entry.partition(":")
            try:
                key = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
            except ValueError:
                key = b""
            if not _ID.fullmatch(key_id) or len(key) != _KEY_BYTES or key_id in keys:
                # The entry is left out of the text, because it is secret.
                raise InvalidSetting(
                    f"DURABLE_TASKS['ENCRYPTION_KEYS']: entry {len(keys) + 1} is not ID:KEY with a"
                    " new id of 1 to 40 letters, digits, '.', '_' or '-', and a key of"
                    f" {_KEY_BYTES} bytes in Base64."
                )
            keys[key_id] = key
        self._ring = Keyring(keys) if keys else None
        self._settings, self._read_at = settings, time.monotonic()


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
    stored = stored_value(value)
    if stored is None:
        return value
    stored.check_form(place)
    ring = process_state.of(CurrentKeyring).get_with(stored.key_id)
    if ring is None:
        raise missing(stored.key_id, place)
    return ring.decrypt(stored, place)
