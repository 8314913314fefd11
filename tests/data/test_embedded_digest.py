"""The digest of the embedded corpus is kept, so that a resume renders no sentence."""

import json

import pytest

from transformer_jax.data.sources.embedded import EmbeddedSource, digests


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "transformer_jax"


def source(pairs=120, locale="de"):
    return EmbeddedSource("en", locale, pairs, 12)


def rendered(corpus):
    return "_splits" in corpus.__dict__


def test_a_corpus_is_rendered_once(cache):
    first, second = source(), source()
    digest = first.fingerprint()
    assert rendered(first)
    assert second.fingerprint() == digest
    assert not rendered(second)
    assert second.split("test").num_examples == 12
    assert second.fingerprint() == digest


def test_another_corpus_has_another_digest(cache):
    found = {
        source().fingerprint()["sha256"],
        source(121).fingerprint()["sha256"],
        source(120, "fr").fingerprint()["sha256"],
    }
    assert len(found) == len(list(cache.iterdir())) == 3


def test_other_code_renders_again(cache, monkeypatch):
    digest = source().fingerprint()
    monkeypatch.setattr(digests, "_code", lambda: "other")
    again = source()
    assert again.fingerprint() == digest
    assert rendered(again)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"sha256": 3}', '{"sha256": "00"}', "other digest", "folder"])
def test_a_damaged_file_is_not_believed(cache, damage):
    digest = source().fingerprint()
    (file,) = cache.iterdir()
    if damage == "other digest":
        values = json.loads(file.read_text())
        file.write_text(json.dumps(values | {"sha256": values["sha256"][::-1]}))
    elif damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_text(damage)
    again = source()
    assert again.fingerprint() == digest
    assert rendered(again)


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert source().fingerprint() == source().fingerprint()
