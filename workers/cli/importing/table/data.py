"""`data.*`: where prompts come from."""

from ..convert import as_list, none_at
from ..row import Switch, not_needed, not_supported, part, renamed, same

ROWS = (
    same("data.train_files", convert=as_list),
    same("data.val_files", convert=as_list),
    same("data.prompt_key"),
    same("data.max_prompt_length"),
    same("data.max_response_length"),
    same("data.shuffle"),
    same("data.seed"),
    same("data.val_max_samples", "-1 is all", none_at(-1, why="all are used")),
    renamed("data.train_batch_size", "psrl.staleness_buffer_entries", why="in groups here as there"),
    renamed("data.trust_remote_code", "model.trust_remote_code", weak=True),
    not_supported("data.train_max_samples", "a part of the training prompts", -1),
    *not_needed("prompts that are too long are always skipped, and counted", "data.filter_overlong_prompts"),
    *not_needed(
        "prompts are read by one process", "data.filter_overlong_prompts_workers", "data.dataloader_num_workers"
    ),
    not_supported(
        "data.truncation",
        "cutting prompts that are too long",
        "error",
        off_means="prompts that are too long are always skipped, and counted",
    ),
    *not_needed("groups are drawn one by one, and each that is filtered is replaced by another", "data.gen_batch_size"),
    *not_needed("validation prompts are spread over the instances one by one", "data.val_batch_size"),
    *not_needed("the order of validation makes no difference", "data.validation_shuffle"),
    *not_needed("the files are read in place", "data.use_shm"),
    *not_needed(
        "a prompt is a text or a list of chat messages, and a reward gets both its text and its tokens",
        "data.return_raw_input_ids",
        "data.return_raw_chat",
        "data.return_full_prompt",
    ),
    not_supported("data.reward_fn_key", "another column for the data source", "data_source"),
    not_supported("data.reward_model_dicts.*", "several rewards, chosen by the data"),
    not_supported("data.tokenizer", "a tokenizer from elsewhere; put its files into the model's directory"),
    not_supported("data.apply_chat_template_kwargs", "arguments of the chat template"),
    not_supported("data.apply_chat_template_kwargs.*", "arguments of the chat template"),
    not_supported("data.custom_cls.path", "a data set of a class of your own; write JSONL or Parquet"),
    *part(Switch("data.custom_cls.path"), "a data set of a class of your own", "data.custom_cls.name"),
    not_supported("data.sampler.class_path", "an order of prompts of your own"),
    *part(Switch("data.sampler.class_path"), "an order of prompts of your own", "data.sampler.class_name"),
    not_supported("data.datagen.path", "prompts that are made while training"),
    *part(Switch("data.datagen.path"), "prompts that are made while training", "data.datagen.name"),
    not_supported("data.databuffer.enable", "showing filtered prompts again", False),
    *part(
        Switch("data.databuffer.enable", off=(False,)),
        "showing filtered prompts again",
        "data.databuffer.keep_filtered",
    ),
    not_supported("data.use_multi_dataset", "a mixture of data sets by ratios", False),
    not_supported("data.train_datas", "a mixture of data sets by ratios"),
    not_supported("data.train_datas.*", "a mixture of data sets by ratios"),
    not_supported("data.train_datasets_ratios", "a mixture of data sets by ratios"),
    *not_needed(
        "it counts only for images, video or sound, which are not supported yet",
        *(f"data.{key}" for key in ("image_key", "video_key", "audio_key", "image_patch_size")),
        *(f"data.{key}" for key in ("return_multi_modal_inputs", "mm_processor_kwargs")),
    ),
    not_supported("data.tool_config_path", "tools as veRL's classes; psrl.agentic_rl.tools takes functions"),
    not_supported("data.function_tool_path", "tools in a file; psrl.agentic_rl.tools takes each by FILE.py:function"),
)
