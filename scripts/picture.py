# SPDX-License-Identifier: Apache-2.0
"""The picture of the README: the first row of an audit's page, side by side.

sfumato audit photo.png -o audit/ && python scripts/picture.py audit/report.html docs/results/audit.jpg
"""

import base64
import io
import re
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

HEIGHT, GAP, BAND = 420, 12, 44
TITLES = ("the photo", "painted from what programs send today", "painted from what Sfumato sends")
PICTURE = re.compile(r'<figure><img src="data:image/[a-z]+;base64,([^"]+)"')


def first_row(page: str) -> list[Image.Image]:
    """Return the pictures of the first row of a page: the photo, and what is painted today and of the default."""
    row = page.split('<div class="row big">')[1].split("</div>")[0]
    return [Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB") for data in PICTURE.findall(row)]


def side_by_side(pictures: list[Image.Image]) -> Image.Image:
    """Return pictures of one height in a row, a title above each."""
    scaled = [one.resize((round(one.width * HEIGHT / one.height), HEIGHT)) for one in pictures]
    width = sum(one.width for one in scaled) + GAP * (len(scaled) - 1)
    sheet = Image.new("RGB", (width, HEIGHT + BAND), "white")
    draw, font, left = ImageDraw.Draw(sheet), ImageFont.load_default(22), 0
    for one, title in zip(scaled, TITLES, strict=True):
        draw.text((left + 2, 8), title, fill="black", font=font)
        sheet.paste(one, (left, BAND))
        left += one.width + GAP
    return sheet


def main(page: str, output: str) -> None:
    """Write the picture."""
    side_by_side(first_row(Path(page).read_text(encoding="utf-8"))).save(output, quality=88, optimize=True)
    print(f"wrote {output}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
