import "@mantine/core/styles.css";
import "@mantine/notifications/styles.css";
import "@mantine/spotlight/styles.css";
import "./ui/console.css";
import { MantineProvider } from "@mantine/core";
import { Notifications } from "@mantine/notifications";
import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { operationsQuery } from "./api/operations";
import { sessionQuery } from "./api/session";
import { watchGateway } from "./api/watch-gateway";
import { startTranslation } from "./i18n";
import { router } from "./routes";
import { ConfirmProvider } from "./ui/confirm";
import { makeQueryClient } from "./ui/query-client";
import { watchFocus } from "./ui/open-dialogs";
import { SessionGate } from "./ui/session-gate";
import { theme } from "./ui/theme";

const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no element #root");
const client = makeQueryClient();
// The session, the contract and the code of the page load beside the texts, not one after the other.
watchGateway();
watchFocus();
void client.prefetchQuery(sessionQuery);
void client.prefetchQuery(operationsQuery);
void router.load();

void startTranslation().then(() => {
  createRoot(root).render(
    <StrictMode>
      <MantineProvider theme={theme} defaultColorScheme="auto">
        <QueryClientProvider client={client}>
          <Notifications position="bottom-right" />
          <SessionGate>
            <ConfirmProvider>
              <RouterProvider router={router} />
            </ConfirmProvider>
          </SessionGate>
        </QueryClientProvider>
      </MantineProvider>
    </StrictMode>,
  );
});
