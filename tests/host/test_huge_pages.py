"""A process restarts once with huge pages enabled, with the same command."""

import os
import subprocess
import sys

import pytest

from transformer_jax.host import huge_pages
from transformer_jax.host.huge_pages import environment_with_huge_pages, restart_with_huge_pages

MADVISE = "always [madvise] never\n"


def test_adds_to_what_is_set():
    mark = {huge_pages.RESTARTED: str(os.getpid())}
    assert environment_with_huge_pages({}, MADVISE) == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", **mark}
    before = {"GLIBC_TUNABLES": "glibc.malloc.check=3", "HOME": "/root"}
    assert environment_with_huge_pages(before, MADVISE) == {
        "GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.hugetlb=1",
        "HOME": "/root",
        **mark,
    }


@pytest.mark.parametrize(
    ("environment", "policy"),
    [
        ({}, "[always] madvise never\n"),
        ({}, "always madvise [never]\n"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, MADVISE),
        (environment_with_huge_pages({}, MADVISE), MADVISE),
        ({huge_pages.RESTARTED: str(os.getpid())}, MADVISE),  # a wrapper has dropped the tunable
    ],
)
def test_no_restart_where_it_would_change_nothing(environment, policy):
    assert environment_with_huge_pages(environment, policy) is None


def test_a_child_of_a_restarted_process_restarts_too():
    assert environment_with_huge_pages({huge_pages.RESTARTED: "1"}, MADVISE) is not None


def test_a_failed_restart_changes_nothing(tmp_path, monkeypatch):
    policy = tmp_path / "enabled"
    policy.write_text(MADVISE)
    monkeypatch.setattr(huge_pages, "_POLICY", policy)
    monkeypatch.delenv(huge_pages.VARIABLE, raising=False)
    tried = []

    def refuse(*arguments):
        tried.append(arguments)
        raise PermissionError

    monkeypatch.setattr(os, "execve", refuse)
    restart_with_huge_pages()
    assert tried == [(sys.executable, sys.orig_argv, environment_with_huge_pages(os.environ, MADVISE))]


def test_without_the_kernels_file(tmp_path, monkeypatch):
    monkeypatch.setattr(huge_pages, "_POLICY", tmp_path / "enabled")
    tried = []
    monkeypatch.setattr(os, "execve", lambda *arguments: tried.append(arguments))
    restart_with_huge_pages()
    assert tried == []


def test_restarts_with_the_same_arguments_and_streams(tmp_path):
    policy = tmp_path / "enabled"
    policy.write_text(MADVISE)
    program = f"""
import os, pathlib, sys
from transformer_jax.host import huge_pages
print("begin", os.getpid(), flush=True)
huge_pages._POLICY = pathlib.Path({str(policy)!r})
huge_pages.restart_with_huge_pages()
print(os.environ["GLIBC_TUNABLES"], sys.argv[1:], sys.stdin.read())
"""
    environment = {name: value for name, value in os.environ.items() if name != huge_pages.VARIABLE}
    command = [sys.executable, "-c", program, "a b", "--c=ü"]
    result = subprocess.run(command, input="text", capture_output=True, text=True, env=environment, check=True)
    first, second, last = result.stdout.splitlines()
    assert first == second  # twice, in one process
    assert last == "glibc.malloc.hugetlb=1 ['a b', '--c=ü'] text"
