"""Messages of Orbax and TensorStore, made short."""

import pytest

from transformer_jax.checkpoints.orbax_io import reason_of

WRITING = 'RESOURCE_EXHAUSTED: Error writing local file "/a/manifest": Failed to write 405 bytes to file 30'


@pytest.mark.parametrize(
    "text",
    [
        f"{WRITING}: No space left on device [os_error_code='28']",
        f"{WRITING}: No space left on device [tensorstore_spec='{{\"a\": [1], \"b\": 2}}'] [os_error_code='28']",
    ],
)
def test_the_message_of_the_operating_system_is_found(text):
    assert reason_of(ValueError(text)) == "No space left on device"


def test_other_messages_are_cut():
    assert reason_of(ValueError("strange: 1 [x=2]\nmore")) == "ValueError: strange: 1 [x=2]"
    assert len(reason_of(ValueError("x" * 1000))) < 250
    assert reason_of(OSError(28, "No space left on device")) == "No space left on device"
