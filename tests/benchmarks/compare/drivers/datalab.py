"""cleanlab on image embeddings, as its tutorials on image and multi-label data do it.

    python datalab.py FEATURES.npz OUT.json

FEATURES.npz holds `features` (N, d) and `labels` (N, K), whether caption i names class k. Writes a
label quality for each pair, those with a label issue, and Datalab's near-duplicates.
"""

import json
import sys
import time

import numpy as np
from cleanlab import Datalab
from cleanlab.multilabel_classification.filter import find_label_issues
from cleanlab.multilabel_classification.rank import get_label_quality_scores
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.multiclass import OneVsRestClassifier


def main(features_file: str, out: str) -> None:
    start = time.perf_counter()
    content = np.load(features_file)
    features, labels = content["features"], content["labels"]
    classifier = OneVsRestClassifier(LogisticRegression(max_iter=1000))
    probabilities = cross_val_predict(classifier, features, labels, cv=5, method="predict_proba")
    named = [np.flatnonzero(row).tolist() for row in labels]
    quality = get_label_quality_scores(named, probabilities)
    issues = find_label_issues(labels=named, pred_probs=probabilities)
    lab = Datalab(data={"row": list(range(len(features)))})
    lab.find_issues(features=features, issue_types={"near_duplicate": {}, "outlier": {}})
    duplicates = lab.get_issues("near_duplicate")["is_near_duplicate_issue"]
    result = {
        "quality": quality.tolist(),
        "issues": np.asarray(issues).astype(bool).tolist(),
        "near_duplicate": duplicates.tolist(),
        "seconds": time.perf_counter() - start,
    }
    with open(out, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
