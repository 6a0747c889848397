"""Draw docs/query.png, the picture of README.md: one val query of mini-circo and what two methods find first.

python -m data_scripts.make_readme_picture [QUERY_NUMBER]
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

from cir_utils import plots
from cir_utils.methods import resolve_settings
from cir_utils.runs import run_method
from cir_utils.workbench import open_workbench

OUT = Path(__file__).resolve().parent.parent / "docs" / "query.png"
SHOWN = 8


def main(number: int) -> None:
    bench = open_workbench("mini-circo", "mini", "val", limit=number + 1)
    benchmark, query = bench.benchmark, bench.queries[number]
    load = benchmark.image_path
    figures = [
        plots.show_query(load(query.reference), query.text, [load(image) for image in query.targets[:3]])
    ]
    for method in ("description-only", "sdr-cir", "xr"):
        run = run_method(bench, method, resolve_settings(method, bench.settings, {}))
        first = run.rankings[query.id][:SHOWN]
        figures.append(
            plots.ranked_strip(
                [load(image) for image in first],
                [image in query.targets for image in first],
                references=[image == query.reference for image in first],
                title=method,
                per_row=SHOWN,
            )
        )
    parts = [Image.open(io.BytesIO(plots.figure_png(figure))).convert("RGB") for figure in figures]
    sheet = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)), "white")
    top = 0
    for part in parts:
        sheet.paste(part, (0, top))
        top += part.height
    OUT.parent.mkdir(exist_ok=True)
    sheet.quantize(128).save(OUT, optimize=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
