import { notifications } from "@mantine/notifications";
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import { conflicts, differences, rebase, type Conflict } from "@/models/changes";

interface Versioned<S> {
  settings: S;
  etag: string;
}

/**
 * The state of a form that changes settings with a version. The form remembers what it has read; if another person was
 * faster, it has what they changed, with the own changes on top. `put` saves the settings that are named, for the version
 * that was read; `get` reads them again.
 */
export function useVersionedSettings<N extends string, S extends Record<N, string | boolean>>({
  names,
  first,
  put,
  get,
  onSaved,
}: {
  names: readonly N[];
  first: Versioned<S>;
  put: (mine: S, changed: readonly N[], etag: string) => Promise<Versioned<S>>;
  get: () => Promise<Versioned<S>>;
  onSaved: () => Promise<unknown>;
}) {
  const { t } = useTranslation();
  const [read, setRead] = useState(first);
  const [mine, setMine] = useState(first.settings);
  const [others, setOthers] = useState<Conflict<N>[]>([]);
  const [seen, setSeen] = useState(first.etag);
  const changed = differences(names, read.settings, mine);
  if (first.etag !== seen) {
    setSeen(first.etag);
    // Nothing was typed yet, so nothing is lost if the form follows the page.
    if (changed.length === 0) {
      setRead(first);
      setMine(first.settings);
    }
  }
  const save = useMutation({
    mutationFn: () =>
      put(
        mine,
        changed.map(({ name }) => name),
        read.etag,
      ),
    onSuccess: async (saved) => {
      setRead(saved);
      setMine(saved.settings);
      setOthers([]);
      notifications.show({ message: t("settings.saved"), color: "green" });
      await onSaved();
    },
    onError: async (error) => {
      if (asApiError(error).kind !== "version-conflict") return;
      const theirs = await get();
      setOthers(conflicts(names, read.settings, theirs.settings, mine));
      setMine(rebase(names, read.settings, theirs.settings, mine));
      setRead(theirs);
    },
  });
  const error = save.error === null ? null : asApiError(save.error);
  const problem = error?.problem ?? null;
  return {
    read,
    mine,
    setMine,
    changed,
    others,
    save,
    error: error?.kind === "version-conflict" ? null : error,
    /** The field that the gateway refused, with its reason. */
    refused: problem?.field === undefined ? null : { field: problem.field, detail: problem.detail },
  };
}
