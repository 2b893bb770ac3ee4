"""Flags that are ignored or refused: training after pretraining, such as by rewards or preferences."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Post-training: rewards, preferences, distillation, pruning",
    ignored(
        "gradients reach the adapters without hooks",
        "--lora-register-forward-hook=str+:['word_embeddings','input_layernorm']",
    ),
    refused(
        "a model learns from tokens, not from rewards or preferences; leave it out",
        """
        --perform-rl-step --rl-prompts-per-eval=int:32 --grpo-prompts-per-step=int:32 --grpo-group-size=int:2
        --rl-generation-lag=float --rl-max-inflight-requests=int --rl-submission-granularity=str{R,G,B}:B
        --rl-consumption-granularity=str{R,G,B}:B --rl-durable-rollout-bank --rl-rollout-bank-dir=str
        --rl-rollout-bank-max-bytes=int:0 --grpo-iterations=int:2 --grpo-clamp-eps-lower=float:0.01
        --grpo-clamp-eps-upper=float:0.01 --grpo-kl-beta=float:0.001 --grpo-entropy-term-weight=float:0.0
        --grpo-filter-groups-with-same-reward --langrl-env-config=str --rl-default-temperature=float:1.0
        --rl-default-top-p=float:0 --rl-default-top-k=int:-1 --rl-offload-optimizer-during-inference
        --rl-kv-cache-management-mode=str{persist,offload,recompute}:persist --rl-persist-cuda-graphs
        --no-rl-persist-cuda-graphs=off:False --rl-partial-rollouts --no-rl-partial-rollouts=off:False
        --rl-inference-logprobs-is-correction --no-rl-inference-logprobs-is-correction=off:False
        --rl-importance-sampling-truncation-coef=float --rl-use-sequence-packing --no-rl-use-sequence-packing=off:False
        --rl-sequence-packing-max-sequences-per-bin=int:50 --rl-sequence-packing-algo=str{fifo,round-robin}:fifo
        --rl-training-cuda-graphs --no-rl-training-cuda-graphs=off:False --rl-inference-tensor-model-parallel-size=int
        --rl-inference-pipeline-model-parallel-size=int --rl-inference-expert-model-parallel-size=int
        --rl-inference-expert-tensor-model-parallel-size=int --rl-inference-model-unified-memory-level=int{0,1}:0
        --rl-offload-inference-model-weights-when-idle --no-rl-offload-inference-model-weights-when-idle=off:False
        --refit-method=str{nccl,gloo,nvshmem}:gloo --rl-verify-model-weights-swap
        --no-rl-verify-model-weights-swap=off:False --rl-skip-bos-token --no-rl-skip-bos-token=off:False --rl-profile
        --rl-profile-dir=str --rl-inference-parsers=str*:[] --rl-num-parallel-generations=int
        --rl-num-parallel-generation-batches=int --rl-generation-batch-size=int --rl-parallel-generation-tasks=int
        --langrl-inference-server-type=str{inplace_megatron,inplace_megatron_chat}:inplace_megatron
        --langrl-inference-server-conversation-template=str --langrl-external-server
        --no-langrl-external-server=off:False --rl-offload-kv-cache-during-training
        --no-rl-offload-kv-cache-during-training=off:False --rl-remove-kv-cache-during-training
        --no-rl-remove-kv-cache-during-training=off:False --rl-reset-cuda-graphs --no-rl-reset-cuda-graphs=off:False
        --grpo-default-temperature=float:1.0 --grpo-default-top-p=float:0 --rl-calculate-intra-group-similarity
        --no-rl-calculate-intra-group-similarity=off:False --rl-sequence-packing-bin-size=int:8192
        --reward-tokens=str+:[] --dpo-loss-type=str{sigmoid,hinge,ipo}:sigmoid --is-pairwise-dataset --ref-model=str
        --refer-model-iter=int:1 --dpo-beta=float:0.1 --dpo-label-smoothing=float:0.0 --pref-ftx=float:0.0
        --use-kv-cache --dataset-additional-keys=str*:[] --md5-validate --max-prompt-length=int:512
        --num-samples-per-step=int:1 --rollout-batch-size=int --cliprange-value=float:0.2 --critic-mini-batch-size=int:1
        --critic-update-epochs=int:1 --ppo-mini-batch-size=int:1 --clip-ratio=float:0.2 --entropy-coeff=float:0.001
        --ppo-epochs=int:1 --shuffle-minibatch --do-sample --missing-eos-penalty=float:0.0 --n-samples-per-prompt=int:1
        --reward-model=str:False --kl-coef=float:0.3 --gamma=float:1.0 --lam=float:0.95 --advantage-whiten=str:True
        --dataset-category=str --extract-content-for-reward=str:False --num-gpus-for-train=int --num-gpus-for-infer=int
        --inference-tensor-model-parallel-size=int:1 --simpo-beta=float:2.5 --gamma-beta-ratio=float:1.4
        --simpo-loss-type=str{sigmoid,hinge,ipo}:sigmoid --simpo-label-smoothing=float:0.0 --placeholder-token=str:ки
        --verifier
        """,
    ),
    refused(
        "adapters of this kind are out of scope; use --lora-target-modules, --lora-r, --lora-alpha and "
        "--lora-dropout alone",
        """
        --freeze-all-layers --lora-modules-to-save=str+
        --lu-lora-final-layer-index=int --lu-lora-lr=float:1.25e-06 --lu-lora-lr-ratio=float:1.0
        """,
    ),
    refused(
        "a checkpoint has the base's weights and the adapters, which python -m mapping convert writes as one model; "
        "leave it out",
        "--save-lora-to-hf --lora-ckpt-filter",
    ),
    ignored(
        "thoughts are put into answers, or left out, by python -m mapping preprocess, not by training",
        "--reasoning-effort=str{max,high} --drop-thinking=str:True",
    ),
    refused(
        "conversations are read by --stage sft and --prompt-type; leave it out",
        """
        --chat-template=str --hf-chat-template --history-turns=int:3 --no-chat-template --no-cut-token
        --tokenizer-prompt-format=str{mistral,llama3,chatml}
        """,
    ),
    refused("a batch does not say of which documents its tokens are; leave it out", "--return-document-ids"),
    refused(
        "a model learns from tokens alone: no teacher, no pruning, no quantisation after training; leave it out",
        """
        --logits-save-top-k=int --logits-save-top-p=float --logits-save-top-p-min-k=int:1 --logits-save-dir=str
        --logits-save-dtype=str{fp16,bf16,fp32}:fp16 --logits-load-dir=str --logits-load-decode-threads=int:4
        --logits-load-prefetch-factor=int:3 --logits-load-msc-prefetch-depth=int:2 --logits-load-kd-loss-alpha=float:1.0
        --logits-load-ignore-errors --export-model-type=str{GPTModel,HybridModel,MambaModel}:GPTModel
        --export-legacy-megatron --export-te-mcore-model --export-default-te-spec --export-force-local-attention
        --export-kv-cache-quant=str{none,fp8,fp8_affine,nvfp4,nvfp4_affine,nvfp4_rotate}:none
        --export-real-quant-cfg=str{fp8_real_quant,fp8_blockwise_real_quant,None}:'None' --export-quant-cfg=str
        --export-kd-teacher-load=str --export-kd-teacher-model-config=str
        --export-kd-teacher-ckpt-format=str{torch,torch_dist,torch_dcp} --export-kd-cfg=str --finetune-hf-dataset=str
        --finetune-data-split=str:train --finetune-data-files=str+ --export-qk-l2-norm --export-moe-apply-probs-on-input
        --export-offline-model --modelopt-enabled
        """,
    ),
    refused("use --pad-to-multiple-of", "--padded-base-length=int:128"),
)
