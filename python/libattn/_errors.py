# SPDX-License-Identifier: MIT
"""Exceptions: what the library's statuses become in Python.

Every one carries `status` (number), `name` ("ATTN_E_SHAPE"), `argument`, `expected` and `given` (0 where the library
states no numbers); its text names all of these in words.
"""
from . import _abi


class AttnError(Exception):
    """A call of libattn failed; nothing was started and no output was touched."""

    def __init__(self, text: str, status: int = _abi.ATTN_E_INTERNAL, argument: str = "", expected: int = 0,
                 given: int = 0) -> None:
        super().__init__(text, status, argument, expected, given)
        self.text, self.status, self.argument, self.expected, self.given = text, status, argument, expected, given

    @property
    def name(self) -> str:
        """The status as attn.h spells it."""
        return _NAMES.get(self.status, "ATTN_E_?")

    def __str__(self) -> str:
        return f"{self.text} [{self.name}]"


class ArgumentError(AttnError, ValueError):
    """The caller can mend it: shape, dtype, stride, device, extent or option."""


class UnsupportedError(AttnError, NotImplementedError):
    """No operator has this feature, or every kernel refused the problem; the text has the reasons."""


class DeviceError(AttnError, RuntimeError):
    """A device or its driver is absent, too old, or failed."""


class OutOfMemoryError(AttnError, MemoryError):
    """An allocation failed."""


_NAMES = {value: name for name, value in vars(_abi).items() if name == "ATTN_OK" or name.startswith("ATTN_E_")}
_KINDS: dict[int, type[AttnError]] = {
    _abi.ATTN_E_FEATURE: UnsupportedError,
    _abi.ATTN_E_NO_KERNEL: UnsupportedError,
    _abi.ATTN_E_NO_DEVICE: DeviceError,
    _abi.ATTN_E_NO_DRIVER: DeviceError,
    _abi.ATTN_E_LAUNCH: DeviceError,
    _abi.ATTN_E_DEVICE_FAULT: DeviceError,
    _abi.ATTN_E_MEMORY: OutOfMemoryError,
}


def error(status: int, text: str, argument: str = "", expected: int = 0, given: int = 0) -> AttnError:
    """The exception for a status."""
    kind = _KINDS.get(status, ArgumentError if status < 200 else AttnError)
    return kind(text, status, argument, expected, given)
