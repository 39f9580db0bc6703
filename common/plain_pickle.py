"""Pickles of plain data (lists, numbers, bytes, arrays of numbers), read without running what they name.

A pickle is a program: it may call whatever it can import. Here it can import nothing. The few names that honest
writers of bytes and of NumPy arrays put into a file (Python 2 and 3, protocols 0 to 5) lead to the stand-ins
below, which build plain values; every other name is an error. NumPy's own constructors are not used: given
crafted arguments they read any memory.
"""
import pickle

import numpy as np


def load_plain(stream):
    """What a pickle in a binary stream holds; Python 2 strings are bytes, NumPy arrays are PlainArray.

    pickle.UnpicklingError says what is wrong with it; EOFError if the stream ends too early.
    """
    try:
        return _PlainUnpickler(stream, encoding='bytes').load()
    except (pickle.UnpicklingError, EOFError):
        raise
    except Exception as error:  # a crafted file reaches nearly any error of the pickle machine
        raise pickle.UnpicklingError('%s: %s' % (type(error).__name__, error)) from None


class PlainArray:
    """Stand-in for a NumPy array or its data type while they are read."""

    __slots__ = ('_code', '_data')

    def __init__(self, code='', data=b''):
        self._code, self._data = code, data

    def __setstate__(self, state):
        if len(state) == 5:                     # an array: version, shape, data type, is Fortran order, content
            self._code, self._data = state[2]._code, state[4]
                                                # a data type: its code is all that is needed

    def values(self):
        """The content in one row: a list for an array of objects, else (n,) of numbers. UnpicklingError if odd."""
        code = self._code.decode('latin1') if isinstance(self._code, bytes) else self._code
        if code in ('O', 'O8') and isinstance(self._data, list):
            return self._data
        if code not in ('b1', 'u1', 'i1', 'i4', 'i8') or not isinstance(self._data, (bytes, bytearray)):
            raise pickle.UnpicklingError('it holds an array of type %.20r, flags or bytes are needed' % (code,))
        return np.frombuffer(self._data, '<' + code)


class _Maker:
    """A function that a pickle may call but not change."""

    __slots__ = ('_function',)

    def __init__(self, function):
        self._function = function

    def __call__(self, *arguments):
        return self._function(*arguments)

    def __setstate__(self, state):
        raise pickle.UnpicklingError('it tries to change a function')


def _to_bytes(value=b'', encoding='latin1'):
    """bytes as Python 3 stores them in protocols 0 to 2: a text and the encoding latin1; or a bytearray."""
    if encoding not in ('latin1', 'latin-1', b'latin1', b'latin-1'):
        raise pickle.UnpicklingError('it names the encoding %.20r' % (encoding,))
    return value.encode('latin1') if isinstance(value, str) else bytes(memoryview(value))


def _to_number(dtype, data):
    return PlainArray(dtype._code, data).values()[0].item()


_NUMPY = {
    'multiarray._reconstruct': lambda *_: PlainArray(),                         # content comes by __setstate__
    'multiarray.scalar': _to_number,
    'numeric._frombuffer': lambda data, dtype, *_: PlainArray(dtype._code, data),
}
_NAMES = {
    '_codecs.encode': _to_bytes,
    'numpy.ndarray': lambda *_: None,                                           # only named, as a type
    'numpy.dtype': lambda code, *_: PlainArray(code),
}
for _package in ('builtins.', '__builtin__.'):                                  # Python 3, Python 2
    _NAMES.update({_package + name: _to_bytes for name in ('bytes', 'bytearray')})
for _package in ('numpy.core.', 'numpy._core.'):                                # before NumPy 2, since
    _NAMES.update({_package + name: maker for name, maker in _NUMPY.items()})


class _PlainUnpickler(pickle.Unpickler):

    def find_class(self, module, name):
        """Whatever a pickle wants to import passes here."""
        full_name = '%s.%s' % (module, name)
        if full_name not in _NAMES:
            raise pickle.UnpicklingError('it names %.80s, which plain data does not need' % full_name)
        return _Maker(_NAMES[full_name])
