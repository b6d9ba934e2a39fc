.PHONY: proto

proto: ## make the generated protobuf files anew
	schemas/proto/generate.sh
