"""Blocks of bytes, against the readers of the gguf package and the types' definitions."""

import numpy as np
import pytest

from mrfquant.language.gguf_codes import BLOCKS
from mrfquant.language.targets import TARGETS


@pytest.fixture
def drawn(request):
    block, levels = BLOCKS[request.param], TARGETS[request.param].levels
    generator = np.random.default_rng(0)
    labels = generator.integers(0, len(levels), (3, 2 * block.group)).astype(np.uint8)
    scale = generator.normal(size=(3, 2)).astype(np.float16)
    weights = np.array(levels, np.float32)[labels] * np.repeat(scale.astype(np.float32), block.group, 1)
    return block, labels, scale, weights


@pytest.mark.parametrize("drawn", sorted(BLOCKS), indirect=True)
def test_labels_and_scales_are_read_back_to_the_bit(drawn):
    block, labels, scale, _ = drawn
    found_labels, found_scale = block.decode(block.encode(labels, scale))
    assert np.array_equal(found_labels, labels)
    assert np.array_equal(found_scale, scale)


@pytest.mark.parametrize("drawn", ["tq2_0", "q4_0"], indirect=True)
def test_the_gguf_package_reads_the_same_weights(drawn):
    quants = pytest.importorskip("gguf.quants")
    gguf = pytest.importorskip("gguf")
    block, labels, scale, weights = drawn
    found = quants.dequantize(block.encode(labels, scale), gguf.GGMLQuantizationType(block.number))
    assert np.array_equal(found, weights)


def test_two_bits_are_a_scale_and_four_codes_a_byte_lowest_bits_first():
    labels = np.zeros((1, 64), np.uint8)
    labels[0, :5] = [3, 0, 1, 2, 3]
    data = BLOCKS["q2_0"].encode(labels, np.array([[-1.0]], np.float16))
    assert data.shape == (1, 18)
    assert data[0, :2].view("<f2") == -1
    assert data[0, 2] == 3 | 0 << 2 | 1 << 4 | 2 << 6
    assert data[0, 3] == 3
    assert not data[0, 4:].any()


def test_one_bit_is_a_scale_and_eight_signs_a_byte_lowest_bit_first():
    labels = np.zeros((1, 128), np.uint8)
    labels[0, [0, 3, 9]] = 1
    data = BLOCKS["q1_0"].encode(labels, np.array([[0.5]], np.float16))
    assert data.shape == (1, 18)
    assert data[0, 2:5].tolist() == [0b1001, 0b10, 0]
