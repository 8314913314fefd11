"""The description of the processor."""

from transformer_jax.host import machine


def test_the_processor_has_its_name_and_the_cores_of_this_process(monkeypatch):
    text = "processor : 0\nmodel name\t: A 9 @ 2: 1\nflags\t\t: fpu\n"
    monkeypatch.setattr(machine, "read_text", lambda path, **_: text + text.replace(" 0", " 1"))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 3}, raising=False)
    assert machine.processor() == "2 x A 9 @ 2: 1"


def test_without_proc_it_has_at_least_an_architecture(monkeypatch):
    def missing(path, **_):
        raise FileNotFoundError

    monkeypatch.setattr(machine, "read_text", missing)
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    assert machine.processor().endswith(f" x {machine.platform.machine()}")
    assert machine.processor_facts() == [""]
