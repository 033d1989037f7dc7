"""PNG files: one per metric, with the curves in their colours."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from mrfquant.reports.curves import LIGHT, panel_curves, panels_of
from mrfquant.reports.figures import draw, write_figures
from mrfquant.reports.groups import group_runs
from mrfquant.reports.runs import read_run


@pytest.fixture
def groups(make_run, told):
    """Two groups, the first of two seeds."""
    folders = [make_run("a", 97.0), make_run("b", 98.0, seed=1), make_run("c", 80.0, method="$BC_{$", seed=3)]
    return group_runs([read_run(folder, told.append) for folder in folders])


def pixels(image, colour):
    """How many pixels have this colour."""
    return int((np.abs(image[..., :3] - to_rgb(colour)).max(axis=-1) < 0.02).sum())


def test_every_metric_has_its_figure_with_the_curve_of_every_group(groups, tmp_path):
    written = write_figures(groups, tmp_path / "figures")
    assert [path.name for path in written] == ["validation.png", "loss.png", "beta.png", "entropy.png", "flips.png"]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(path.name for path in written)
    for path in written:
        image = imread(path)
        assert image.shape[0] > 400
        assert image.shape[1] > 800
        assert pixels(image, LIGHT[0]) > 500, path
        hidden = path.name != "validation.png"  # elsewhere the curves are equal: the best is on top
        assert pixels(image, LIGHT[1]) > (50 if hidden else 500), path
        assert pixels(image, LIGHT[2]) == 0, path


def test_metrics_that_were_not_recorded_have_no_figure(make_run, told, tmp_path):
    run = read_run(make_run("ref", records=[{"iteration": i, "loss": 1.0} for i in (1, 2)]), told.append)
    assert [path.name for path in write_figures(group_runs([run]), tmp_path)] == ["loss.png"]


def test_beta_and_loss_are_logarithmic_and_names_are_no_formulas(groups):
    scales, texts = {}, {}
    for panel in panels_of(groups):
        axes = draw(panel, panel_curves(panel, groups), [group.label for group in groups]).axes[0]
        scales[panel.metric] = axes.get_yscale()
        texts[panel.metric] = [text.get_text() for text in axes.get_legend().get_texts()]
    assert scales == {"val_top1": "log", "loss": "log", "beta": "log", "entropy": "linear", "flips": "log"}
    assert texts["loss"] == ["PMF", "$BC_{$"]
    assert texts["val_top1"] == ["PMF", "$BC_{$", "thin: relaxed, before rounding"]


@pytest.mark.parametrize(
    ("lowest", "highest", "ticks"),
    [
        (9.0, 91.9, [0, 50, 80, 90]),
        (60.0, 98.2, [80, 90, 95, 98]),
        (79.0, 92.5, [80, 84, 88, 92]),
        (97.1, 97.9, [97.25, 97.5, 97.75]),
    ],
)
def test_accuracies_have_ticks_enough_to_read_them(make_run, told, lowest, highest, ticks):
    records = [{"iteration": i, "val_top1": value} for i, value in enumerate((lowest, highest), 1)]
    groups = group_runs([read_run(make_run("run", records=records), told.append)])
    (panel, *_) = panels_of(groups)
    axes = draw(panel, panel_curves(panel, groups), [group.label for group in groups]).axes[0]
    high, low = axes.get_ylim()  # of errors: accuracy rises upwards
    assert sorted(100 - tick for tick in axes.get_yticks() if low <= tick <= high) == pytest.approx(ticks)


def test_metrics_of_zeros_and_of_full_marks_are_drawn(make_run, told, tmp_path):
    records = [{"iteration": i, "val_top1": 100.0, "flips": 0.0, "entropy": 0.0} for i in (1, 2)]
    run = read_run(make_run("done", records=records), told.append)
    assert len(write_figures(group_runs([run]), tmp_path)) == 3
