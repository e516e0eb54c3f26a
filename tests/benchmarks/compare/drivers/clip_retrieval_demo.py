"""clip-retrieval on the demo model: open_clip is told its architecture, then `inference` runs.

python clip_retrieval_demo.py FOLDER_OF_CONFIG --input_dataset ... (options of inference)
"""

import sys

import fire
import open_clip
from clip_retrieval.clip_inference.main import main

if __name__ == "__main__":
    open_clip.add_model_config(sys.argv.pop(1))
    fire.Fire(main)
