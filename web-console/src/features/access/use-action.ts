import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient, type QueryKey } from "@tanstack/react-query";
import { asApiError, type ApiError } from "@/api/api-error";
import { useConfirm, type Confirmation } from "@/ui/confirm";

interface Action {
  confirmation: Confirmation;
  run: () => Promise<unknown>;
  /** What is true after it. */
  done: string;
  /** Is called after it, before anything is read again. */
  after?: () => void;
}

/** Returns a function that asks, does what was agreed to, says that it is done, and has answers under `key` read again. */
export function useAction(key: QueryKey): {
  act: (action: Action) => Promise<void>;
  isPending: boolean;
  error: ApiError | null;
} {
  const confirm = useConfirm();
  const client = useQueryClient();
  const change = useMutation({
    mutationFn: ({ run }: Action) => run(),
    onSuccess: async (_, { done, after }) => {
      notifications.show({ message: done, color: "green" });
      after?.();
      await client.invalidateQueries({ queryKey: key });
    },
  });
  const act = async (action: Action) => {
    if (await confirm(action.confirmation)) change.mutate(action);
  };
  return { act, isPending: change.isPending, error: change.error === null ? null : asApiError(change.error) };
}
