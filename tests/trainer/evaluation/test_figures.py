"""Figures are drawn for every shape of history and labels, say what they show, and are written whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from trainer.evaluation import figures
from trainer.evaluation.figures import draw_all, draw_information, draw_loss, draw_map, draw_similarity, draw_weights


def history(epochs: int = 3, labels: bool = True) -> list[dict]:
    items = []
    for epoch in range(1, epochs + 1):
        metrics = {"nml": 8 - epoch, "reg": 0.1, "i_nml": epoch, "i_nce": 0.5 * epoch, "seconds": 0.1}
        if epoch % 2:  # diagnosed every second epoch
            metrics |= {"weight_self": 0.8, "weight_min": 0.5, "weight_max": 2.0, "weight_std": 0.2}
            metrics |= {"weight_fn": 0.9, "weight_tn": 1.1} if labels else {}
        items.append({"epoch": epoch, "metrics": metrics})
    return items


@pytest.fixture
def embeddings() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    y = np.arange(60) % 3
    return (random.normal(size=(3, 6))[y] + 0.2 * random.normal(size=(60, 6))).astype(np.float32), y


def words(figure: Figure) -> str:
    texts = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    labels = [line.get_label() for axes in figure.axes for line in axes.get_lines()]
    return " ".join(map(str, texts + labels))


def test_all_figures_are_written_whole_and_nothing_else(tmp_path, embeddings):
    z, y = embeddings
    directory = tmp_path / "figures"
    paths = draw_all(directory, history=history(), before=z[:, ::-1], after=z, y=y, classes=("a", "b", "$c_"))
    assert [path.name for path in paths] == ["loss.png", "mi.png", "weights.png", "similarity.png", "map.png"]
    assert sorted(directory.iterdir()) == sorted(paths)
    for path in paths:
        with Image.open(path) as image:
            image.load()
            assert image.width >= 690
            assert np.asarray(image.convert("L")).std() > 5  # not blank


def test_without_labels_or_history_what_can_be_drawn_is_drawn(tmp_path, embeddings):
    z, _ = embeddings
    paths = draw_all(tmp_path, history=[], before=None, after=z, y=np.full(60, -1), classes=())
    assert [path.name for path in paths] == ["map.png"]


def test_information_is_called_an_estimate_never_a_bound():
    text = words(draw_information(history()))
    assert text.count("estimate") >= 2
    assert "bound" not in text


def test_weights_show_the_diagnosed_epochs_only():
    axes = draw_weights(history(5)).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["false negatives (same class)"].get_xdata().tolist() == [1, 3, 5]
    assert lines["false negatives (same class)"].get_ydata().tolist() == [0.9, 0.9, 0.9]
    assert "uniform weights" in lines


def test_weights_without_labels_show_the_spread():
    text = words(draw_weights(history(labels=False)))
    assert "no labels" in text
    assert "largest" in text
    assert "same class" not in text


def test_missing_and_non_finite_values_are_left_out():
    broken = [*history(2), {"epoch": 3, "metrics": {"nml": float("nan"), "reg": None}}]
    for axes in draw_loss(broken).axes:
        assert axes.get_lines()[0].get_xdata().tolist() == [1, 2]
    assert draw_loss([]) is None
    assert draw_weights([{"epoch": 1, "metrics": {"nml": 1.0}}]) is None


def test_similarity_compares_before_with_after(embeddings):
    z, y = embeddings
    noise = np.random.default_rng(1).normal(size=z.shape).astype(np.float32)
    figure = draw_similarity(noise, z, y, seed=0)
    assert len(figure.axes) == 2
    ratios = [float(axes.get_title().split("ratio ")[1].rstrip(" %")) for axes in figure.axes]
    assert ratios[1] < 50 < ratios[0]
    assert len(draw_similarity(None, z, y, seed=0).axes) == 1


def test_map_samples_and_says_so(embeddings):
    z, y = embeddings
    axes = draw_map(z, y, ("a", "b", "c"), max_points=30, seed=0).axes[0]
    assert "30 of 60" in axes.get_title()
    assert sum(len(group.get_offsets()) for group in axes.collections) == 30


def test_map_of_collapsed_or_tiny_tables_does_not_fail():
    assert draw_map(np.ones((20, 4)), None, (), 100, 0) is not None
    assert draw_map(np.random.default_rng(0).normal(size=(6, 1)), None, (), 100, 0) is not None
    assert draw_map(np.ones((3, 4)), None, (), 100, 0) is None


def test_failed_write_leaves_the_old_file_and_no_scraps(tmp_path, monkeypatch):
    target = tmp_path / "loss.png"
    target.write_bytes(b"old")

    def full_disk(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(Figure, "savefig", full_disk)
    with pytest.raises(OSError, match="no space"):
        figures._save(draw_loss(history()), target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_a_read_only_map_is_drawn_like_the_array(tmp_path, embeddings):
    z, y = embeddings
    np.save(tmp_path / "z.npy", z)
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    places = [
        np.concatenate([group.get_offsets() for group in draw_map(table, y, (), 30, 0).axes[0].collections])
        for table in (z, mapped)
    ]
    np.testing.assert_array_equal(*places)
    assert words(draw_similarity(mapped, mapped, y, seed=0)) == words(draw_similarity(z, z, y, seed=0))


def test_figures_read_only_the_rows_of_their_samples(monkeypatch):
    """What no sample holds is not a number: if a figure looked at it, t-SNE would refuse and the ratio be lost."""
    monkeypatch.setattr(figures, "PAIR_NODES", 50)
    y = np.arange(1_000) % 2
    z = np.full((1_000, 4), np.nan, dtype=np.float32)
    pairs = torch.randperm(1_000, generator=torch.Generator().manual_seed(0))[:50].numpy()
    points = np.random.default_rng(0).permutation(1_000)[:40]
    for chosen in (pairs, points):
        z[chosen] = np.eye(4)[y[chosen]] + 0.1 * np.random.default_rng(1).normal(size=(len(chosen), 4))
    assert "40 of 1,000" in draw_map(z, y, (), 40, 0).axes[0].get_title()
    assert "distance ratio ≈" in draw_similarity(None, z, y, 0).axes[0].get_title()
