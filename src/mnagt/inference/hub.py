"""Model folders on the Hugging Face Hub (``mnagt[hub]``)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from mnagt.errors import InputError, install_command, one_line, quote
from mnagt.inference.weights import CALIBRATION, CONFIG, DOMAIN, KNOWN, WEIGHTS

REPO_ID = r"[\w.-]+/[\w.-]+"
"""'owner/name', as models of the Hub are called."""


@contextmanager
def _explain(repo_id: str, remedy: str) -> Iterator[None]:
    """Within the block, what goes wrong with the Hub is an ``InputError`` that names the repository."""
    try:
        yield
    except ImportError:
        raise InputError(f"the Hugging Face Hub needs huggingface_hub: {install_command('hub')}") from None
    except InputError:
        raise
    except Exception as error:  # of HTTP, of the file system, of the client: they differ from version to version
        raise InputError(f"{quote(repo_id)} on the Hugging Face Hub: {one_line(error)}; {remedy}") from error


def download_model(repo_id: str, **options: Any) -> Path:
    """The folder of a model of the Hub, in the cache of ``huggingface_hub``.

    Only the files of a model folder are downloaded, whatever else the repository holds.

    Args:
        repo_id: 'owner/name'.
        options: ``revision``, ``cache_dir``, ``force_download``, ``local_files_only`` and ``token`` of
            ``huggingface_hub.snapshot_download``.
    """
    with _explain(repo_id, "there is no folder of that name either: give a folder, or owner/name of a model"):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(repo_id, allow_patterns=list(KNOWN), **options))


def upload_model(
    folder: Path, repo_id: str, *, private: bool | None = None, token: str | bool | None = None, **options: Any
) -> str:
    """Put the files of a model folder into a repository of the Hub, in one commit; the address of the commit.

    The repository is made if it is not there. Files of a model that was there before and that this one lacks, such as
    ``calibration.json``, are deleted by the same commit.

    Args:
        folder: A model folder.
        repo_id: 'owner/name', or 'name' for the owner of the token.
        private: Whether a repository that is made is private; None as is usual for the owner.
        token: Of the Hub; None for the one that ``hf auth login`` has kept.
        options: ``commit_message``, ``revision`` and ``create_pr`` of ``huggingface_hub.upload_folder``.
    """
    with _explain(repo_id, "log in with `hf auth login`, or give a token that may write there"):
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            allow_patterns=list(KNOWN),
            delete_patterns=[CONFIG, WEIGHTS, CALIBRATION, DOMAIN],
            **options,
        )
        return commit.commit_url


class HubMixin:
    """``save_pretrained``, ``from_pretrained`` and ``push_to_hub`` in the form of ``huggingface_hub.ModelHubMixin``.

    The class has ``save``, which writes the files of a model folder, and ``_read_folder``, which checks and reads them.
    """

    def save(self, folder: Path) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define save")

    @classmethod
    def _read_folder(cls, folder: Path) -> Self:
        raise NotImplementedError(f"{cls.__name__} must define _read_folder")

    def save_pretrained(
        self, save_directory: Path | str, *, repo_id: str | None = None, push_to_hub: bool = False, **options: Any
    ) -> str | None:
        """Write the model, with its card, into a folder of its own: to keep, to hand on.

        Args:
            save_directory: The folder; one with something in it is refused.
            repo_id: Where to on the Hub, if it is to go there; the name of the folder if not given.
            push_to_hub: Whether to upload it too, as ``push_to_hub`` does with ``options``.

        Returns:
            The address of the commit on the Hub, or None.
        """
        folder = Path(save_directory)
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: there is something in it already; choose another folder")
        self.save(folder)
        return self.push_to_hub(repo_id or folder.name, **options) if push_to_hub else None

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Path | str,
        *,
        revision: str | None = None,
        cache_dir: Path | str | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
    ) -> Self:
        """The model in a folder, or one of the Hugging Face Hub; with the checks of ``load_model``.

        Args:
            pretrained_model_name_or_path: A folder, or 'owner/name' on the Hub. A folder of that name comes first.
            revision: Branch, tag or commit on the Hub.
            cache_dir: Where downloads are kept.
            force_download: Whether to download again what is there.
            local_files_only: Whether to use only what was downloaded before.
            token: Of the Hub; None for the one that ``hf auth login`` has kept.
        """
        name, folder = pretrained_model_name_or_path, Path(pretrained_model_name_or_path)
        if isinstance(name, str) and re.fullmatch(REPO_ID, name) and not folder.is_dir():
            folder = download_model(
                name,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
            )
        return cls._read_folder(folder)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Upload a model of mnagt",
        private: bool | None = None,
        token: str | bool | None = None,
        branch: str | None = None,
        create_pr: bool = False,
    ) -> str:
        """Upload the model, with its card, to the Hugging Face Hub, in one commit.

        Args:
            repo_id: 'owner/name'. The repository is made if it is not there.
            commit_message: Of the commit.
            private: Whether a repository that is made is private; None as is usual for the owner.
            token: Of the Hub; None for the one that ``hf auth login`` has kept.
            branch: The branch; None for main.
            create_pr: Whether to open a pull request with the commit.

        Returns:
            The address of the commit.
        """
        with TemporaryDirectory() as folder:
            self.save(Path(folder))
            return upload_model(
                Path(folder),
                repo_id,
                private=private,
                token=token,
                revision=branch,
                commit_message=commit_message,
                create_pr=create_pr,
            )
