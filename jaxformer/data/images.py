"""Images with classes, from one file of arrays or the digits that scikit-learn brings along."""

import hashlib
import os
from pathlib import Path

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data.cache import fingerprint
from jaxformer.data.objectives import Row, image_row
from jaxformer.errors import UserError

DIGITS = "digits"  # 1,797 images of 8 × 8 grey pixels, 0 … 16
Arrays = tuple[np.ndarray, np.ndarray]  # images float32[N, H, W, C], labels [N]


class ImageRows:
    """An image a row, the same in all epochs; `targets` are numbers of classes."""

    def __init__(self, images: np.ndarray, targets: np.ndarray, length: int, name: str):
        self._images, self._targets, self.length = images, targets, length
        self.num_tokens, self.num_bytes = len(images), 0
        self.fingerprint = fingerprint("images", name, length)

    def __len__(self) -> int:
        return len(self._images)

    def row(self, epoch: int, index: int) -> Row:
        del epoch
        return image_row(self._images[index], int(self._targets[index]), self.length)


def open_images(cfg: RunConfig) -> tuple[tuple[str, ...], ImageRows, ImageRows]:
    """(names of the classes, rows of training, rows of validation); raises UserError.

    Validation is a file of its own, or a share of the images that data.split_seed draws.
    """
    data = cfg.data
    images, labels = _read(data.path, cfg)
    if data.validation_path:
        parts = [(images, labels), _read(data.validation_path, cfg)]
    else:
        held_out = min(len(images) - 1, max(1, round(len(images) * data.held_out)))
        words = np.random.Philox(key=[data.split_seed, 0]).random_raw(len(images))
        order = np.argsort(words, kind="stable")
        split = np.sort(order[held_out:]), np.sort(order[:held_out])
        parts = [(images[part], labels[part]) for part in split]
    values = np.unique(parts[0][1])
    if len(values) < 2:
        raise UserError(data.path, f"has {len(values)} class", "give images of two or more")
    drawn = [] if data.validation_path else [data.held_out, data.split_seed]
    name = fingerprint([_hash(*part) for part in parts], drawn)
    train, validation = (_rows(cfg, part, values, name) for part in parts)
    return tuple(map(str, values.tolist())), train, validation


def _rows(cfg: RunConfig, part: Arrays, values: np.ndarray, name: str) -> ImageRows:
    images, labels = part
    if len(unknown := np.setdiff1d(labels, values)):
        what = f"has the class {unknown[0]!r}, none of the {len(values)} that are trained on"
        where = cfg.data.validation_path or cfg.data.path
        raise UserError(where, what, "leave it out, or raise data.validation_fraction")
    return ImageRows(images, np.searchsorted(values, labels), cfg.data.length, name)


def _read(path: str, cfg: RunConfig) -> Arrays:
    """Images float32[N, H, W, C] and labels; whole numbers of a byte become -1 … 1."""
    images, labels = _digits() if path == DIGITS else _arrays(path)
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or len(images) != len(labels) or labels.ndim != 1 or len(images) < 2:
        what = f"has images {images.shape} and labels {labels.shape}"
        raise UserError(path, what, "give images [N, H, W] or [N, H, W, C] and labels [N], N ≥ 2")
    if images.shape[1:] != cfg.model.patches.shape:
        shapes = images.shape[1:], cfg.model.patches.shape
        found, wanted = (" x ".join(map(str, shape)) for shape in shapes)
        mend = "set model.patches.image_size and channels"
        raise UserError(path, f"holds images of {found}, the model takes {wanted}", mend)
    if images.dtype == np.uint8:
        images = images.astype(np.float32) / 127.5 - 1
    images = images.astype(np.float32)
    if not np.isfinite(images).all():
        raise UserError(path, "holds numbers that are not finite", "mend the file")
    return images, labels


def _arrays(path: str) -> Arrays:
    file = Path(os.path.expanduser(path))
    if not file.is_file():
        mend = f"name a FILE.npz, or {DIGITS}, which scikit-learn has"
        raise UserError(path, "is not a file", mend)
    try:
        with np.load(file) as arrays:
            return arrays["images"], arrays["labels"]
    except Exception as error:  # numpy, zipfile and pickle raise a dozen kinds
        reason = " ".join(str(error).split())
        mend = "save it by numpy.savez(FILE, images=…, labels=…)"
        raise UserError(path, f"cannot be read ({reason})", mend)


def _digits() -> Arrays:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        mend = "install the extra 'oracle', which has it, or name a FILE.npz"
        raise UserError(f"data.path = {DIGITS}", "needs scikit-learn", mend) from error
    pixels, classes = load_digits(return_X_y=True)
    return np.asarray(pixels).reshape(-1, 8, 8) / 8 - 1, np.asarray(classes)


def _hash(images: np.ndarray, labels: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in (images, labels):
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
