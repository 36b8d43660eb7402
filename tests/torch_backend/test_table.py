"""docs/tables/torch.md has every feature, so every public function of torch.distributed too."""

import table
from feature_rows import FEATURES, documented


def test_every_public_function_is_in_a_feature() -> None:
    table.collect()
    assert table.uncovered() == []


def test_page_has_a_row_for_every_feature() -> None:
    table.collect()
    assert set(documented()) == set(FEATURES), "run .ci/torch-table"


def test_every_section_has_its_place() -> None:
    table.collect()
    assert {row.section for row in FEATURES.values()} <= set(table.SECTIONS)
