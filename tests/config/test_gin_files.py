"""Mistakes in a gin file are told with their place; a binding that nothing reads is a mistake."""

import shutil
from pathlib import Path

import gin
import pytest

import mrfquant.training.experiment  # noqa: F401 - the names in the configs
from mrfquant.config import gin_files
from mrfquant.config.gin_files import CONFIGS, Config, nested_settings
from mrfquant.errors import BadInput
from mrfquant.schedules import CosineDecay, StepDecay


@pytest.fixture
def write(tmp_path):
    (tmp_path / "base.gin").write_text("StepDecay.interval = 3\n")

    def write(text, name="config.gin"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def read_and_use(path, bindings, use):
    config = Config(path, bindings)
    with config.locate_errors():
        use()
        config.check_all_used()


def refused(path, bindings=(), use=StepDecay):
    """The message that reading the file and using the part ends with."""
    with pytest.raises(BadInput) as error:
        read_and_use(path, bindings, use)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_includes_are_found_beside_the_file_and_expanded(write):
    config = Config(write("include 'base.gin'\nStepDecay.scale = 0.5"))
    assert StepDecay().interval == 3
    assert "StepDecay.interval = 3" in config.text()
    config.check_all_used()


def test_folders_of_the_working_folder_are_no_packages_to_look_for_includes_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("base").mkdir()
    Path("mine/own.gin").write_text("include 'base/digits.gin'\ninclude 'pmf_lenet300_digits.gin'")
    assert "Trainer.iterations" in Config("mine/own.gin").text()


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("\nStepDecy.scale = 0.5", 2, "there is no part 'StepDecy'; did you mean 'StepDecay'?"),
        ("StepDecay.scal = 0.5", 1, "doesn't have a parameter named 'scal'"),
        ("StepDecay.scale = = 0.5", 1, "Unable to parse value"),
        ("StepDecay.scale = @nothing", 1, "there is no part 'nothing'; a part of your own needs its module: --import"),
        ("include 'nowhere.gin'", 1, "Unable to open file: nowhere.gin"),
        ("import no_such_module", 1, "there is no module 'no_such_module'"),
        ("include 'base.gin'\n\nStepDecay.scale = -1", 3, "StepDecay.scale = -1, expected a finite number above 0"),
        ("include 'base.gin'\nStepDecay.scale = 1\nCosineDecay.final = 1.0", 3, "nothing in this run reads it"),
        ("include 'base.gin'\nStepDecay.scale = 1\nspeed = 3", 3, "speed is bound"),
        ("include 'base.gin'\nStepDecay.scale = 1\nfast/StepDecay.scale = 2", 3, "fast/StepDecay.scale is bound"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(write, text, line, message):
    told = refused(write(text))
    assert message in told
    assert f"config.gin:{line}" in told


def test_a_mistake_inside_an_include_names_the_included_file(write):
    write("StepDecay.interval = 0", "base.gin")
    assert "base.gin:1" in refused(write("include 'base.gin'\nStepDecay.scale = 0.5"))


def test_a_mistake_that_is_about_no_setting_has_no_place(write):
    def fail():
        StepDecay()
        raise BadInput("something else is wrong")

    assert (
        refused(write("include 'base.gin'\nspeed = 1\nStepDecay.scale = %speed"), use=fail) == "something else is wrong"
    )


def test_an_undefined_macro_is_told(write):
    assert "%speed is used and nowhere defined" in refused(write("StepDecay.scale = %speed"))


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("StepDecay.scale = 'x'", "expected a finite number above 0"),
        ("StepDecay.scle = 1", "doesn't have a parameter named 'scle'"),
        ("StepDecay.scale", "is not a binding"),
        ("StepDecay.scale = )", "Unable to parse value"),
    ],
)
def test_a_mistake_in_set_names_the_binding(write, binding, message):
    told = refused(write("include 'base.gin'"), [binding])
    assert message in told
    assert "--set" in told


def test_set_overrides_the_file(write):
    Config(write("include 'base.gin'\nStepDecay.scale = 0.5"), ["StepDecay.scale = 0.25"])
    assert StepDecay().scale == 0.25


def test_a_used_macro_and_a_scope_in_use_are_no_mistakes(write):
    config = Config(write("include 'base.gin'\nspeed = 0.5\nStepDecay.scale = %speed\nslow/CosineDecay.final = 0.5"))
    StepDecay()
    with gin.config_scope("slow"):
        assert CosineDecay().final == 0.5
    config.check_all_used()


def test_configs_and_spaces_are_found_by_the_same_names_in_a_wheel(tmp_path, monkeypatch):
    """There the configs are in mrfquant/configs, and the folder gin is the library."""
    shutil.copytree(CONFIGS, tmp_path / "mrfquant" / "configs")
    monkeypatch.setattr(gin_files, "CONFIGS", tmp_path / "mrfquant" / "configs")
    monkeypatch.chdir(tmp_path)
    for name in ("ref_lenet300_digits", "gin/ref_lenet300_digits.gin", "gin/medium/ref_vgg16_cifar10.gin"):
        assert Config(name).file.is_relative_to(tmp_path)
    assert gin_files.shipped(Path("gin/spaces/pmf.space")) == tmp_path / "mrfquant/configs/spaces/pmf.space"
    assert "did you mean gin/ref_lenet300_digits.gin?" in refused("gin/ref_lenet300_digts.gin")


@pytest.mark.parametrize("name", ["ref_lenet300_digits", "gin/ref_lenet300_digits.gin"])
def test_the_projects_own_configs_are_found_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Config(name).file.stem == "ref_lenet300_digits"


def test_a_missing_file_suggests_the_nearest():
    assert "did you mean gin/ref_lenet300_digits.gin?" in refused("gin/ref_lenet300_digts.gin")


def test_the_text_of_a_config_reads_back_to_itself(write):
    text = Config(write("include 'base.gin'\nspeed = 0.5\nStepDecay.scale = %speed")).text()
    assert Config(write(text, "again.gin")).text() == text


def test_the_text_of_a_config_has_mappings_in_their_order(write):
    text = Config(write("Labelling.levels = {'layer*': [-1, 0, 1], '*': [-1, 1], 'a*': [0, 1]}")).text()
    assert text.index("layer*") < text.index("'*'") < text.index("a*")


def test_nested_settings_keep_scopes_apart(write):
    Config(write("CosineDecay.final = 0.1\nslow/CosineDecay.final = 0.5"))
    CosineDecay()
    with gin.config_scope("slow"):
        CosineDecay()
    settings = nested_settings()
    assert settings["CosineDecay"]["final"] == 0.1
    assert settings["slow/CosineDecay"]["final"] == 0.5
