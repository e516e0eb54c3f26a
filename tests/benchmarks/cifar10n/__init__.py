"""CIFAR-10N, photographs with the mistakes of people: scores, audits and repairs."""
