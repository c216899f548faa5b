"""Augmentation: what may move and what must not, on any type of batch."""

from __future__ import annotations

import pytest
import torch

from tinysubnets.errors import SettingError
from tinysubnets.tasks.augment import Augmentation, augment, crop, flip, shift


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 64, side: int = 6) -> torch.Tensor:
    return torch.randint(1, 256, (count, 3, side, side), generator=generator(9)).to(torch.uint8)


def test_flip_mirrors_about_half_and_keeps_the_rest() -> None:
    batch = images(256)
    out = flip(batch, generator())
    same = (out == batch).flatten(1).all(1)
    mirrored = (out == batch.flip(-1)).flatten(1).all(1)
    assert bool((same | mirrored).all())
    assert 90 < int(same.sum()) < 166


def test_shift_moves_each_image_whole_and_fills_with_zeros() -> None:
    batch = images()
    out = shift(batch, 2, generator())
    padded = torch.nn.functional.pad(batch, (2, 2, 2, 2))
    seen = set()
    for before, after in zip(padded, out, strict=True):
        places = [
            (y, x)
            for y in range(5)
            for x in range(5)
            if torch.equal(before[:, y : y + 6, x : x + 6], after)
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) > 15  # of 25 places, with 64 draws


def test_crop_stays_within_the_image() -> None:
    ramp = torch.arange(32.0).expand(200, 1, 32, 32)
    out = crop(ramp, 0.25, generator())
    steps = out[:, 0, 0].diff(dim=-1)[:, 1:-1]
    assert out.min() >= 0 and out.max() <= 31
    # A window of width w stretches a ramp to a slope of w; 3:4 of the root of a quarter at least.
    slopes = steps.mean(-1)
    assert slopes.min() > 0.4 and slopes.max() <= 1.001 and slopes.std() > 0.05
    assert torch.allclose(out, out[:, :, :1].expand_as(out), atol=1e-4)  # rows stay rows


def test_crop_of_everything_changes_nothing() -> None:
    batch = images()
    spec = Augmentation(crop=1.0)
    assert augment(batch, spec, generator()) is batch


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16])
def test_shape_and_type_are_kept(dtype: torch.dtype) -> None:
    batch = images().to(dtype)
    before = batch.clone()
    out = augment(batch, Augmentation(flip=True, shift=1, crop=0.5), generator())
    assert out.shape == batch.shape and out.dtype == dtype
    assert torch.equal(batch, before)
    assert not torch.equal(out, batch)


def test_equal_generators_give_equal_batches_and_none_is_the_global_one() -> None:
    batch, spec = images(), Augmentation(flip=True, shift=2, crop=0.5)
    assert torch.equal(augment(batch, spec, generator(1)), augment(batch, spec, generator(1)))
    assert not torch.equal(augment(batch, spec, generator(1)), augment(batch, spec, generator(2)))
    torch.manual_seed(5)
    expected = augment(batch, spec)
    torch.manual_seed(5)
    assert torch.equal(augment(batch, spec, None), expected)


def test_off_by_default_and_leaves_vectors_alone() -> None:
    vectors = torch.rand(4, 10)
    assert augment(vectors, Augmentation()) is vectors
    with pytest.raises(SettingError, match="works on images"):
        augment(vectors, Augmentation(flip=True))


@pytest.mark.parametrize("wrong", [{"shift": -1}, {"crop": 0.0}, {"crop": 1.5}])
def test_settings_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(SettingError):
        Augmentation(**wrong)
