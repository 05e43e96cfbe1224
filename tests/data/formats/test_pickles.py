import collections
import contextlib
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_archives import python2_pickle

from pour.data.formats.pickles import load_plain
from pour.errors import UsageError

BATCH = {b"labels": [3, 1], b"data": np.arange(12, dtype=np.uint8).reshape(2, 6), b"names": [b"x", b"y" * 300]}


class Trap:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    "written",
    [python2_pickle(BATCH), *(pickle.dumps(BATCH, protocol) for protocol in (0, 1, 2, 3, 4))],
    ids=["python 2", *(f"python 3, protocol {protocol}" for protocol in range(5))],
)
def test_plain_data_comes_back(written):
    read = load_plain(written, "a batch")
    assert read[b"labels"] == [3, 1]
    assert read[b"names"] == [b"x", b"y" * 300]
    assert read[b"data"].dtype == np.uint8
    np.testing.assert_array_equal(read[b"data"], BATCH[b"data"])


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4", ">f8", "b1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_keep_type_and_order(dtype, order):
    array = np.asarray(np.arange(24).reshape(2, 3, 4) % 7, dtype, order=order)
    read = load_plain(pickle.dumps(array, 2), "an array")
    np.testing.assert_array_equal(read, array)
    assert read.dtype.kind == array.dtype.kind
    assert read.dtype.itemsize == array.dtype.itemsize


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (lambda mark: Trap(os.system, f"touch {mark}"), r"(posix|nt)\.system"),
        (lambda mark: Trap(eval, f"open({str(mark)!r}, 'w')"), r"eval"),
        (lambda mark: Trap(open, str(mark), "w"), r"open"),
        (lambda mark: collections.OrderedDict(a=1), r"collections\.OrderedDict"),
        (lambda mark: np.array([print, None], object), r"array of type 'O8'"),
        (lambda mark: np.zeros(2, [("a", "u1")]), r"array of type 'V1'"),
        (lambda mark: np.float64(1.0), r"numpy\._?core\.multiarray\.scalar"),
        (lambda mark: Exception("x"), r"Exception"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_foreign_objects_are_named_and_never_run(tmp_path, value, named, protocol):
    mark = tmp_path / "mark"
    written = pickle.dumps({b"data": value(mark)}, protocol)
    with pytest.raises(UsageError, match=f"data_batch_1 is refused because .*{named}"):
        load_plain(written, "data_batch_1")
    assert not mark.exists()


def test_allowed_names_cannot_be_used_for_anything_else():
    asks = b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1tR(I3\nX\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffI0\ntb."
    assert type(load_plain(asks, "x")).__module__ == "pour.data.formats.pickles"
    with pytest.raises(UsageError, match="utf_7"):
        load_plain(b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00utf_7tR.", "x")
    with pytest.raises(UsageError, match="damaged"):
        load_plain(b"cnumpy\nndarray\n(I99999999\ntR.", "x")


@pytest.mark.parametrize("put", [b"r\xff\xff\xff\x03", b"p67108863\n"])
def test_a_memo_larger_than_the_pickle_is_refused(put):
    with pytest.raises(UsageError, match="it asks for a memo of 67108863 entries"):
        load_plain(b"\x80\x02K\x01" + put + b".", "x")


@pytest.mark.parametrize("keep", range(0, 400, 9))
def test_a_truncated_pickle_is_one_sentence(keep):
    written = python2_pickle(BATCH)
    with pytest.raises(UsageError, match=r"a batch is (damaged|refused)"):
        load_plain(written[: min(keep, len(written) - 1)], "a batch")


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
@settings(deadline=None, max_examples=300)
def test_altered_bytes_never_escape_as_another_error(at, noise):
    written = python2_pickle(BATCH)
    at %= len(written)
    altered = written[:at] + noise + written[at + len(noise) :]
    with contextlib.suppress(UsageError):
        load_plain(altered, "a batch")
