"""What the explorer shows of a picture equals what the model computes; its page in a browser."""

import base64
import dataclasses
import io
import json

import jax.numpy as jnp
import numpy as np
import pytest
from explorer_support import (
    classifier,
    idle,
    image_classifier,
    is_wider_than_the_screen,
    opening,
    saved,
    served,
)
from image_support import pictures
from PIL import Image
from support import assert_close

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.explorer import images
from transformer_jax.explorer.encoders import log_prob_of
from transformer_jax.explorer.kinds import explored
from transformer_jax.explorer.server import MAX_BODY, MAX_BODY_WITH_PICTURE
from transformer_jax.inspection.attribution import integrated_gradients
from transformer_jax.inspection.image_attention import image_maps

OWN = "encoder/self_attention"
PIXELS = pictures(1)[0][0]


def png(pixels):
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def sent(data):
    return base64.b64encode(data).decode()


PICTURE = sent(png(PIXELS[..., 0]))


@pytest.mark.slow
def test_a_picture_has_the_labels_of_predict_and_the_rollout_of_its_attention():
    page = explored(image_classifier(), "m")
    look = page.look(PICTURE)
    (label,) = page.predictor.predict([PIXELS])
    assert dict(map(tuple, look["predictions"][0])) == pytest.approx(label.probabilities, abs=2e-5)
    maps = image_maps(page.model, page.trained.params, PIXELS)
    assert_close(look["rollout"], maps.rollout, 2e-6)
    assert_close(look["attention"][OWN]["patches"], maps.patches, 2e-6)
    shown = base64.b64decode(look["picture"].removeprefix("data:image/png;base64,"))
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(shown))), PIXELS[..., 0])


@pytest.mark.slow
def test_attributions_of_patches_are_integrated_gradients():
    page = explored(image_classifier(), "m")
    found = page.attributions(PICTURE)
    best = page.trained.labels.index(found["of"])
    batch = {"inputs": jnp.asarray(PIXELS[None])}

    def measure(outputs):
        return log_prob_of(outputs, (), best)

    expected = integrated_gradients(page.model, page.trained.params, batch, measure, head=page.head, power=3)
    assert len(found["by_token"]) == page.model.num_positions
    assert_close(found["by_token"], expected.by_token[0], 2e-5)


def test_a_picture_of_another_size_is_cropped():
    grey = np.repeat(np.arange(12, dtype=np.uint8)[None], 8, 0)
    batch = explored(image_classifier(), "m").row(sent(png(grey))).batch
    np.testing.assert_array_equal(batch["inputs"][0, :, :, 0], grey[:, 2:10])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (sent(b"GIF89a"), "the picture cannot be read as PNG or JPEG"),
        (sent(png(PIXELS[..., 0])[:45]), "the picture cannot be read as PNG or JPEG"),
        ("", "the picture cannot be read as PNG or JPEG"),
        ("no base64!", "the picture is not in base64"),
        ("\u00e9", "the picture is not in base64"),
    ],
)
def test_what_is_no_picture(text, message):
    with pytest.raises(DataError, match=message):
        explored(image_classifier(), "m").row(text)


def test_pictures_that_are_too_large(monkeypatch):
    page, size = explored(image_classifier(), "m"), len(png(PIXELS[..., 0]))
    monkeypatch.setattr(images, "MAX_IMAGE_PIXELS", 63)
    with pytest.raises(DataError, match="the picture has 8 x 8 pixels; expected at most 65,536 a side and 63 in all"):
        page.row(PICTURE)
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", size - 1)
    with pytest.raises(DataError, match=f"the picture has {size} bytes; expected at most {size - 1}"):
        page.row(PICTURE)


@pytest.fixture(scope="module")
def client():
    with served(image_classifier(), classifier()) as client:
        yield client


@pytest.mark.slow
def test_only_questions_about_pictures_may_be_large(client):
    for path in ("look", "effects", "attributions"):
        status, found = client.json(f"/api/{path}", {"picture": "A" * 2 * MAX_BODY})
        assert (status, found["error"]) == (400, "the picture cannot be read as PNG or JPEG")
    status, found = client.json("/api/look", b"x" * (MAX_BODY_WITH_PICTURE + 1))
    assert (status, found["error"]) == (413, "the request has more than 11,250,348 bytes")
    status, found = client.json("/api/generate", b"x" * (MAX_BODY + 1))
    assert (status, found["error"]) == (413, "the request has more than 65,536 bytes")
    status, found = client.json("/api/generate", {"text": "a"})
    assert (status, found["error"]) == (400, "model 0 generates no text")


@pytest.mark.slow
def test_a_file_is_chosen_and_its_heads(browser, client, tmp_path):
    file = tmp_path / "picture.png"
    file.write_bytes(png(PIXELS[..., 0]))
    with opening(browser) as opened:
        page = opened(client, "#text=fine&second=no&layer=1&head=1", width=390)
        page.get_by_text("Choose a picture.").wait_for()
        idle(page)
        page.set_input_files("#picture", file)
        page.locator("figcaption", has_text="Attributions").wait_for()
        idle(page)
        look = explored(image_classifier(), "m").look(PICTURE)
        label, p = look["predictions"][0][0]
        assert page.locator(".predictions tr").nth(1).text_content().startswith(f"{label}{100 * p:.1f} %")
        assert page.locator("figcaption").all_text_contents()[:3] == [
            "Picture",
            "Layer 1, head 1",
            "Rollout of all layers",
        ]
        for place, numbers in ((1, look["attention"][OWN]["patches"][1][1]), (2, look["rollout"])):
            titles = page.locator("figure").nth(place).locator("title").all_text_contents()
            written = [float(title.partition(": ")[2]) for title in titles]
            assert_close(written, np.ravel(numbers), 6e-5)
        page.locator("[data-map='0']").click()
        assert page.locator("figcaption").nth(1).text_content() == "Layer 1, head 0"
        page.locator("[data-head='1.0']").first.focus()
        page.keyboard.press("a")
        page.wait_for_selector("[data-head='1.0'].out")
        idle(page)
        assert "with all heads" in page.locator(".predictions tr").nth(1).text_content()
        assert not is_wider_than_the_screen(page)
        files = saved(page, tmp_path)
        assert files["svg"].read_text().startswith("<svg ")
        model = json.loads(files["json"].read_text())["models"][0]
        assert model["attributions"]["of"] == label
        assert json.loads(model["attributions"]["asked"])["picture"] == 1
        still = browser.new_page()
        still.goto(files["page"].as_uri())
        still.wait_for_selector("[data-head='1.0'].out")
        assert still.locator("figure image").count() == 4
        still.close()


@pytest.mark.slow
def test_files_that_are_no_pictures_are_said(browser, client, tmp_path):
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{client.port}/")
    (tmp_path / "text.png").write_text("no picture")
    page.set_input_files("#picture", tmp_path / "text.png")
    page.locator("#status.error", has_text="the picture cannot be read as PNG or JPEG").wait_for()
    (tmp_path / "large.png").write_bytes(bytes(images.MAX_IMAGE_BYTES + 1))
    page.set_input_files("#picture", tmp_path / "large.png")
    said = "the picture has 8,388,609 bytes; expected at most 8,388,608"
    page.locator("#status.error", has_text=said).wait_for()
    page.close()


def test_pictures_of_other_colours_are_refused_at_the_start():
    loaded = image_classifier()
    model = dataclasses.replace(loaded.config.model, image_channels=4)
    four = loaded._replace(config=dataclasses.replace(loaded.config, model=model))
    with pytest.raises(ConfigError, match=r"model.image_channels=4: the page shows pictures of 1 or 3"):
        explored(four, "m")
