"""cleanvision on a folder of images: its issues, and the score of each image.

python vision.py FOLDER OUT.json
"""

import json
import sys
from pathlib import Path

from cleanvision import Imagelab


def main(folder: str, out: str) -> None:
    lab = Imagelab(data_path=folder)
    lab.find_issues(n_jobs=2)
    table = lab.issues
    names = [Path(path).stem for path in table.index]
    result = {"keys": names}
    for column in table.columns:
        result[column] = [
            None if value != value else value.item() if hasattr(value, "item") else value
            for value in table[column]
        ]
    with open(out, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
