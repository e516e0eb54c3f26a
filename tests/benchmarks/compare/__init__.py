"""clip-retrieval, data-juicer, DataComp, cleanlab and cleanvision beside ncclean."""
