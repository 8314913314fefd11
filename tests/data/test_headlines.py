"""Headlines of documents of the embedded corpus, `data.target_feature=headlines`."""

from collections import Counter

import pytest

from transformer_jax.config import DataConfig, ExperimentConfig, TaskConfig
from transformer_jax.data import sources
from transformer_jax.data.sources import load_source, open_test_set
from transformer_jax.data.sources.embedded.headlines import headlines
from transformer_jax.data.sources.inputs import input_file
from transformer_jax.data.sources.source import joined


def corpus(feature, pairs=400, **fields):
    return load_source(DataConfig(num_train_pairs=pairs, num_eval_pairs=100, target_feature=feature, **fields))


@pytest.mark.parametrize("locales", [("en", "de"), ("de", "fr")])
def test_the_headline_is_the_family_of_all_but_one_and_its_first_phrase(locales):
    fields = dict(zip(("source_locale", "target_locale"), locales, strict=True))
    plain, documents = corpus(None, **fields), corpus("headlines", **fields)
    assert documents.split_names == plain.split_names
    places, sizes = set(), set()
    for name in plain.split_names:
        of_split = plain.split(name).features
        columns = (of_split[feature] for feature in ("inputs", "families", "phrases"))
        known = {
            text.removesuffix("."): (family, phrases[0][1]) for text, family, phrases in zip(*columns, strict=True)
        }
        found = documents.split(name).features
        assert {*found} == {"inputs", "targets", "sentences", "references"}
        used = [sentence.removesuffix(".") for sentences in found["sentences"] for sentence in sentences]
        assert len({*used}) == len(used) > 0.6 * len(known)
        for text, target, sentences, references in zip(*found.values(), strict=True):
            assert text == " ".join(sentences)
            assert all(sentence.endswith(".") for sentence in sentences)
            families = [known[sentence.removesuffix(".")][0] for sentence in sentences]
            (theme, most), (other, one) = Counter(families).most_common()
            assert (most, one) == (len(sentences) - 1, 1)
            first = known[sentences[families.index(theme)].removesuffix(".")][1]
            assert references == [f"{theme}: {first}", f"{first} ({theme})"]
            assert target == references[0]
            sizes.add(len(sentences))
            places.add((len(sentences), families.index(other)))
    assert sizes == {3, 4, 5}
    assert places == {(size, place) for size in sizes for place in range(size)}


def test_documents_are_the_same_on_every_machine():
    """These were written down once."""
    families = "abbcabccbabcacab"
    texts = [f"{family}{number}" for number, family in enumerate(families)]
    phrases = [(("kind", text), ("kind", "more")) for text in texts]
    found = headlines({"inputs": texts, "families": [*families], "phrases": phrases})
    assert found["inputs"] == ["b1. b2. a0.", "c7. b5. b8.", "c6. a4. a9.", "c13. a12. a14."]
    assert found["targets"] == ["b: b1", "b: b5", "a: a4", "a: a12"]


def test_a_smaller_corpus_is_the_beginning_of_a_larger_one_and_chunks_are_of_any_size():
    large, small = corpus("headlines"), corpus("headlines", pairs=150)
    whole = large.split("train").features
    assert small.split("train").features == {
        name: values[: small.num_examples("train")] for name, values in whole.items()
    }
    assert large.num_examples("train") == len(whole["inputs"])
    for size in (7, 1000):
        chunks = [*large.chunks("train", size)]
        assert joined(chunks).features == whole
        assert {chunk.num_examples for chunk in chunks[:-1]} <= {size}
    digests = {corpus(feature).fingerprint()["sha256"] for feature in (None, "families", "headlines")}
    assert len(digests) == 3


def test_files_for_a_model_of_headlines_may_have_lists(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"en": ["One.", "Two."], "de": ["a", "b"]}\n')
    config = ExperimentConfig(
        task=TaskConfig(name="text_to_text"), data=DataConfig(target_feature="headlines")
    ).resolved()
    expected = {"inputs": ["One. Two."], "targets": ["a"], "sentences": [["One.", "Two."]], "references": [["a", "b"]]}
    assert open_test_set(config.data, sources.TestFiles("a", str(path))).split("a").features == expected
    assert [found.value for found in input_file(config.data, str(path), ["jsonl"], None).inputs()] == ["One. Two."]
