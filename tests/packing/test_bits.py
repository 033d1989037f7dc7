"""Labels to bytes and back, against a plain loop over bits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrfquant.errors import BadInput
from mrfquant.packing import PackedParameter
from mrfquant.packing.bits import label_bits, pack, packed_size, unpack


@given(data=st.data(), d=st.integers(2, 300), count=st.integers(0, 70), base3=st.booleans())
@settings(max_examples=150, deadline=None)
def test_round_trip_and_layout(data, d, count, base3):
    encoding = "base3" if base3 else "bits"
    d = 3 if base3 else d
    labels = data.draw(st.lists(st.integers(0, d - 1), min_size=count, max_size=count))
    packed = pack(torch.tensor(labels, dtype=torch.int64), d, encoding)
    assert len(packed) == packed_size(count, d, encoding)
    assert unpack(packed, count, d, encoding).tolist() == labels
    if base3:
        expected = [sum(x * 3**i for i, x in enumerate(labels[j : j + 5])) for j in range(0, count, 5)]
    else:
        b = label_bits(d)
        stream = sum(label << (i * b) for i, label in enumerate(labels))
        expected = list(stream.to_bytes(-(-count * b // 8), "little"))
    assert packed.tolist() == expected


def test_bits_of_a_label():
    assert [label_bits(d) for d in (2, 3, 4, 5, 8, 9, 256)] == [1, 2, 2, 3, 3, 4, 8]


@given(
    shape=st.lists(st.integers(0, 5), min_size=0, max_size=4),
    levels=st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=9, unique=True),
    scaled=st.sampled_from(["none", "layer", "channel"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_a_parameter_comes_back_to_the_bit(shape, levels, scaled, seed):
    random = torch.Generator().manual_seed(seed)
    levels = tuple(sorted(levels))
    if not shape:
        scaled = "none" if scaled == "channel" else scaled
    rows = {"none": None, "layer": 1, "channel": shape[0] if shape else 1}[scaled]
    scale = None if rows is None else torch.rand(rows, generator=random) + 0.1
    labels = torch.randint(len(levels), shape, generator=random)
    spread = 1.0 if scale is None else scale.view(-1, *[1] * (len(shape) - 1))
    values = (torch.tensor(levels)[labels] * spread).view(shape)
    packed = PackedParameter.of(values, levels, "base3" if len(levels) == 3 else "bits", scale)
    assert torch.equal(packed.values(), values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pack(torch.tensor([0, 2]), 2), "labels from 0 to 2, expected 0 to 1"),
        (lambda: pack(torch.tensor([0, 1]), 2, "base3"), "base3 is for 3 levels, these are 2"),
        (lambda: unpack(torch.zeros(2, dtype=torch.uint8), 8, 2), "8 labels of 2 levels take 1 bytes"),
        (lambda: unpack(torch.tensor([3], dtype=torch.uint8), 1, 3), "a packed label is 3, expected 0 to 2"),
        (lambda: PackedParameter.of(torch.tensor([1.0, 0.5]), (-1.0, 1.0)), "1 of 2 weights are not on the levels"),
        (lambda: PackedParameter(torch.zeros(1, dtype=torch.uint8), (9,), (-1.0, 1.0)), "take 2 bytes, not 1"),
        (
            lambda: PackedParameter(torch.zeros(1, dtype=torch.uint8), (2, 3), (-1.0, 1.0), "bits", torch.ones(3)),
            "a scale of shape",
        ),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(BadInput) as error:
        call()
    assert message in str(error.value)
