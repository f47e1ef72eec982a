class GPUModelRunner:
    def execute_model(self, ids):
        return ids
