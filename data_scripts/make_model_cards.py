"""Write the model cards of mini-CLIP and mini-VLM from their training records and measured figures.

    python -m data_scripts.evaluate_mini_models --json > figures.json
    python -m data_scripts.make_model_cards figures.json

Every number of a card comes from `training.json` in the model's folder or from the figures. Also renews the
checksums of the models' folder.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cir_utils.files import write_manifest
from data_scripts.evaluate_mini_models import MODELS

CARDS = {
    "mini-vlm": """# mini-VLM

A `Qwen2_5_VLForConditionalGeneration` of {millions:.1f} million parameters with its own tokenizer, for
the pictures of the mini world (112 x 112 pixels, 16 picture tokens). It loads with
`AutoModelForImageTextToText` and `AutoProcessor` from this folder, as its large relatives do.

**Does**: caption, sampled dense caption, target description, Selective CoT, text and vision imagination,
true/false statements for a target, verification of a statement from a picture or a caption (read from
the logits of `true` and `false`), editing a caption, comparing two pictures under a change.

**Data**: drawn pictures and template texts of `train` worlds in two domains: scenes
(`data_scripts/world.py`, `texts.py`) and, from stretch {fashion} on, fashion (`world_fashion.py`,
`texts_fashion.py`). About a tenth of the (object, colour), (object, background), (garment, colour),
(pattern, colour) and (garment, background) pairs are never seen, and neither are the wordings of changes
that are measured as held out. These differ from training texts in words, seldom in construction: near
neighbours ("not a cat but a dog", "a striped one") do occur in training. No real picture, no other text.

**Recipe**: `data_scripts/train_mini_vlm.py`. First the vision tower under attention-pooled attribute
heads, then the whole model on all tasks, many tasks sharing one picture as branches of one sequence;
AdamW, bfloat16 autocast; stored in bfloat16.

Four devices make it compose and compare. From stretch 5 on, the objects of a quarter of the scenes
have a colour without a name, and nothing is asked about it. From stretch 4 on, no loss counts the
absence of held-out combinations as evidence: values that would complete one take no part in the softmax
where a head predicts a field of such a pair and where an answer about one picture names a kind, a garment
or its pattern, and no false statement describes one. From stretch 6 on, the model also learns to say
true statements, not only to judge them. From stretch 17 on, no picture shows a pattern in the colour that
is held out as its ground: white checks on red would teach that white among checks is never the ground.
""",
    "mini-clip": """# mini-CLIP

An open_clip `CLIP` of {millions:.1f} million parameters with its own tokenizer (112 x 112 pixels,
patches of 16, 128 dimensions), for the pictures of the mini world. It loads through open_clip's `local-
dir:` from this folder.

**Data**: as mini-VLM's, `train` worlds only, fashion from stretch {fashion} on: captions in many forms, short
noun phrases, bare modification phrases; a third of the descriptive texts name the drawing style.

**Recipe**: `data_scripts/train_mini_clip.py`. Contrastive loss over batches of one domain, with attribute
heads on the image embedding and on the picture tokens; AdamW, bfloat16 autocast; stored in float16.
""",
}
WEAKNESSES = {
    "mini-vlm": (
        "It knows the mini world alone: a photograph, another drawing, or a word outside its texts gives "
        "a fluent and meaningless answer. The lowest figures above are its weakest points. Its "
        "probabilities of true and false are not calibrated."
    ),
    "mini-clip": (
        "It knows the mini world alone. Viewpoint and variant are hardly named in its texts, so text "
        "cannot ask for them. Word order carries little: which side a prop stands on is often lost."
    ),
}


def card(name: str, figures: dict[str, dict[str, float]]) -> str:
    folder = MODELS / name
    weights = next(folder.glob("*.safetensors"))
    stretches = json.loads((folder / "training.json").read_text())
    shares = [s.get("mix", s).get("fashion", 0) for s in stretches]  # 0 for the average of two
    first = next(number for number, share in enumerate(shares, start=1) if share)
    lines = [CARDS[name].format(millions=weights.stat().st_size / 2e6, fashion=first)]
    lines.append(
        "| stretch | seconds (one or two shared cores) | steps | pictures | fashion | learning rate |\n"
        "|---|---|---|---|---|---|"
    )
    for number, (s, share) in enumerate(zip(stretches, shares, strict=True), start=1):
        stage = s.get("stage", "contrastive")
        if stage == "average":
            lines.append(f"| {number}: {stage} | the mean of the weights of {' and '.join(s['of'])} |||||")
            continue
        lines.append(
            f"| {number}: {stage} | {s['seconds']} | {s['steps']} | {s['pictures']} | {share:.0%} "
            f"| {s['learning_rate']} |"
        )
    lines.append(
        "\n**Measured** by `python -m data_scripts.evaluate_mini_models` on new pictures "
        "(mini-VLM: of held-out combinations), in percent:\n"
    )
    for title, values in figures.items():
        if title.startswith(name):
            lines.append(f"| {title} | |\n|---|---|")
            lines += [f"| {key} | {100 * value:.1f} |" for key, value in values.items() if key != "seconds"]
            lines.append("")
    lines.append(f"**Known weaknesses**: {WEAKNESSES[name]}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", type=Path)
    measured = json.loads(parser.parse_args().figures.read_text())
    for model in CARDS:
        (MODELS / model / "README.md").write_text(card(model, measured), encoding="utf-8")
        (MODELS / model / "figures.json").write_text(
            json.dumps({k: v for k, v in measured.items() if k.startswith(model)}, indent=1) + "\n"
        )
        write_manifest(MODELS / model)
