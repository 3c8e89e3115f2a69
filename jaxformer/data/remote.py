"""Token caches at a URL, by `fsspec` (gs:// needs its package gcsfs, s3:// needs s3fs).

Object stores have no rename: the files come first and meta.json, which names their hashes, last,
and what is there without meta.json is no cache.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from jaxformer.data.cache import FILES
from jaxformer.errors import UserError

META = "meta.json"


class Remote:
    """The folder `url` of a store. Errors of the store are UserErrors."""

    def __init__(self, url: str):
        import fsspec

        self._url = url.rstrip("/")
        with self._errors():
            self._files, self._root = fsspec.core.url_to_fs(self._url)

    def get(self, folder: Path, name: str) -> bool:
        """Copies a cache to a folder, unverified; False if there is none."""
        with self._errors():
            self._files.invalidate_cache()
            if not self._files.exists(self._path(name, META)):
                return False
            for file in (META, *FILES):
                with contextlib.suppress(FileNotFoundError):  # torn: the copy will not verify
                    self._files.get_file(self._path(name, file), str(folder / file))
        return True

    def put(self, folder: Path, name: str, is_new: bool) -> None:
        """Copies a cache from a folder, one that `is_new` over what may be there."""
        with self._errors():
            self._files.invalidate_cache()
            meta = self._path(name, META)
            if self._files.exists(meta):
                if not is_new and self._is_like(folder, name):
                    return
                self._files.rm_file(meta)
            self._files.makedirs(self._path(name), exist_ok=True)
            for file in (*FILES, META):
                self._files.put_file(str(folder / file), self._path(name, file))

    def _is_like(self, folder: Path, name: str) -> bool:
        """Whether meta.json and all sizes are those of the folder."""
        content = (folder / META).read_bytes()
        if self._files.cat_file(self._path(name, META)) != content:
            return False
        sizes = {file: about["size"] for file, about in json.loads(content)["files"].items()}
        return all(self._size(self._path(name, file)) == sizes[file] for file in FILES)

    def _path(self, name: str, file: str = "") -> str:
        return f"{self._root.rstrip('/')}/tokens-{name}" + f"/{file}" * bool(file)

    def _size(self, path: str) -> int:
        try:
            return self._files.size(path)
        except FileNotFoundError:
            return -1

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        where = f"data.cache = {self._url}"
        try:
            yield
        except ImportError as error:
            raise UserError(where, f"needs a package ({error})", "install it or name a folder")
        except Exception as error:  # a dozen kinds: of the network, of rights, of the store
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UserError(where, f"cannot be used ({reason})", "check the URL and the rights")
