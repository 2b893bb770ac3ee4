"""Flags that are refused: models of images and of sentence pairs, retrieval."""

from mapping.flags.flag import group, refused

FLAGS = group(
    "Vision: models of images and of sentence pairs, retrieval",
    refused(
        "vision, retrieval and sentence-pair models are out of scope; only decoders of text are trained",
        """
        --ict-head-size=int --biencoder-projection-dim=int:0 --biencoder-shared-query-context-model --ict-load=str
        --bert-load=str --titles-data-path=str --query-in-block-prob=float:0.1 --use-one-sent-docs
        --evidence-data-path=str --retriever-report-topk-accuracies=int+:[] --retriever-score-scaling
        --block-data-path=str --embedding-path=str --indexer-batch-size=int:128 --indexer-log-interval=int:1000
        --num-classes=int:1000 --img-h=int:224 --img-w=int:224 --num-channels=int:3 --patch-dim=int:16
        --classes-fraction=float:1.0 --data-per-class-fraction=float:1.0 --vision-pretraining
        --vision-pretraining-type=str{classify,inpaint,dino}:classify --vision-backbone-type=str{vit,mit,swin}:vit
        --swin-backbone-type=str{tiny,base,h3}:tiny --mask-type=str{random,row}:random --mask-factor=float:1.0
        --iter-per-epoch=int:1250 --dino-local-img-size=int:96 --dino-local-crops-number=int:10
        --dino-head-hidden-size=int:2048 --dino-bottleneck-size=int:256 --dino-freeze-last-layer=float:1
        --dino-norm-last-layer --dino-warmup-teacher-temp=float:0.04 --dino-teacher-temp=float:0.07
        --dino-warmup-teacher-temp-epochs=int:30 --bert-embedder-type=str{megatron,huggingface}:megatron
        --retro-project-dir=str --retro-add-retriever --retro-cyclic-train-iters=int --retro-encoder-layers=int:2
        --retro-encoder-hidden-dropout=float:0.1 --retro-encoder-attention-dropout=float:0.1 --retro-num-neighbors=int:2
        --retro-num-retrieved-chunks=int:2 --retro-attention-gate=float:1
        --retro-no-verify-neighbor-count>retro_verify_neighbor_count=off --retro-workdir=str --retro-return-doc-ids
        --img-dim=int:224 --spatial-merge-size=int:2 --temporal-patch-size=int:2 --patch-size=int:14
        --mm-use-im-start-end --mm-use-im-patch-token --tune-mm-mlp-adapter --freeze-clip-vision-tower --freeze-llm
        --image-folder=str: --mm-vision-select-layer=int --vision-tower=str: --image-aspect-ratio=str:square
        --version=str:plain --mm-projector-type=str --image-size=int --cvcuda-image-processing --freeze-LM --freeze-ViT
        --language-model-type=str --vision-model-type=str:clip --disable-vision-class-token
        --allow-missing-vision-projection-checkpoint --use-tiling --max-num-tiles=int:1 --use-thumbnail
        --num-frames=int:1 --special-tokens=str*:['<image>'] --image-tag-type=str{nvlm,internvl,}:
        """,
    ),
)
