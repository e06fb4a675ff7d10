import { IconArrowDown, IconArrowUp } from "@tabler/icons-react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useCallback, useMemo, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { useTranslation } from "react-i18next";

const ROW_PX = 41;
const OVERSCAN = 12;
const PAGE_ROWS = 10;
const ICON_PX = 12;
const CARD_ICON_PX = 18;

export interface Column<Row> {
  key: string;
  header: string;
  cell: (row: Row) => ReactNode;
  /** Value to sort by; null sorts last in both directions. Without it, the column can't be sorted. */
  sortBy?: (row: Row) => string | number | bigint | null;
  align?: "end";
  /** A track of CSS grid; `minmax(8rem, 1fr)` by default. */
  width?: string;
}

export interface Sort {
  key: string;
  descending: boolean;
}

/**
 * A table of any length: only the rows on the screen exist. Arrow keys, Home, End and Page keys move between rows, Enter
 * opens one. On a narrow screen each row is a card, and a list of the columns sorts them.
 */
export function DataTable<Row>({
  label,
  rows,
  columns,
  rowKey,
  onOpen,
  canOpen = () => true,
  initialSort = null,
  onSort,
}: {
  label: string;
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  rowKey: (row: Row) => string;
  onOpen?: (row: Row) => void;
  /** Whether a row can be opened; every row by default. */
  canOpen?: (row: Row) => boolean;
  initialSort?: Sort | null;
  /** Is told of a new order, for example to keep it in the URL. */
  onSort?: (sort: Sort) => void;
}) {
  const { t } = useTranslation();
  const scroller = useRef<HTMLDivElement>(null);
  const [sort, setSort] = useState<Sort | null>(initialSort);
  const [current, setCurrent] = useState(0);
  const sorted = useMemo(() => sortRows(rows, columns, sort), [rows, columns, sort]);
  // A measured height belongs to its row: it moves with the row when the order changes.
  const keyAt = useCallback((index: number) => rowKey(sorted[index] as Row), [rowKey, sorted]);
  // eslint-disable-next-line react-hooks/incompatible-library -- its functions are used in this component only.
  const virtual = useVirtualizer({
    count: sorted.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    getItemKey: keyAt,
    overscan: OVERSCAN,
    initialRect: { width: 1_000, height: 700 },
  });
  const template = columns.map((column) => column.width ?? "minmax(8rem, 1fr)").join(" ");
  const style = { "--columns": template } as React.CSSProperties;

  const order = (next: Sort) => {
    setSort(next);
    onSort?.(next);
  };
  const choose = (key: string) => {
    order({ key, descending: sort?.key === key ? !sort.descending : false });
  };
  const focus = (index: number) => {
    const at = Math.max(0, Math.min(sorted.length - 1, index));
    setCurrent(at);
    virtual.scrollToIndex(at);
    requestAnimationFrame(() => scroller.current?.querySelector<HTMLElement>(`[data-index="${at}"]`)?.focus());
  };
  const open = (row: Row) => {
    if (canOpen(row)) onOpen?.(row);
  };
  const onKey = (event: KeyboardEvent, index: number, row: Row) => {
    const moves: Record<string, number> = {
      ArrowDown: index + 1,
      ArrowUp: index - 1,
      PageDown: index + PAGE_ROWS,
      PageUp: index - PAGE_ROWS,
      Home: 0,
      End: sorted.length - 1,
    };
    // Keys inside a cell, such as a button, belong to the cell.
    if (event.target !== event.currentTarget) return;
    const to = moves[event.key];
    if (to !== undefined) {
      event.preventDefault();
      focus(to);
    } else if (event.key === "Enter") {
      open(row);
    }
  };

  return (
    <div className="panel table-scroll" ref={scroller} tabIndex={sorted.length === 0 ? 0 : undefined}>
      <CardOrder columns={columns} sort={sort} onOrder={order} />
      <div className="data-table" role="table" aria-label={label} aria-rowcount={sorted.length + 1} style={style}>
        <div className="data-head" role="rowgroup">
          <div className="data-row" role="row" aria-rowindex={1}>
            {columns.map((column) => (
              <Head key={column.key} column={column} sort={sort} onChoose={choose} hint={t("sortBy")} />
            ))}
          </div>
        </div>
        <div className="data-body" role="rowgroup" style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {virtual.getVirtualItems().map((item) => {
            const row = sorted[item.index] as Row;
            return (
              <div
                key={rowKey(row)}
                ref={virtual.measureElement}
                className="data-row"
                role="row"
                aria-rowindex={item.index + 2}
                data-index={item.index}
                data-link={onOpen !== undefined && canOpen(row) ? "" : undefined}
                tabIndex={item.index === Math.min(current, sorted.length - 1) ? 0 : -1}
                style={{
                  position: "absolute",
                  top: 0,
                  left: 0,
                  width: "100%",
                  transform: `translateY(${item.start}px)`,
                }}
                onClick={(event) => {
                  // Links and buttons in a cell do their own work, and selecting text opens nothing.
                  const isCell = (event.target as Element).closest("a, button, input, label") === null;
                  if (isCell && window.getSelection()?.isCollapsed !== false) open(row);
                }}
                onFocus={() => {
                  setCurrent(item.index);
                }}
                onKeyDown={(event) => {
                  onKey(event, item.index, row);
                }}
              >
                <Cells row={row} columns={columns} />
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}

/** The cells of a row. Scrolling moves rows and makes new ones; it does not draw the cells of the others again. */
const Cells = memo(function Cells<Row>({ row, columns }: { row: Row; columns: readonly Column<Row>[] }) {
  return columns.map((column) => (
    <div
      key={column.key}
      role="cell"
      data-label={column.header}
      className={column.align === "end" ? "align-end" : undefined}
    >
      {column.cell(row)}
    </div>
  ));
}) as <Row>(props: { row: Row; columns: readonly Column<Row>[] }) => ReactNode;

/** The order of rows that are cards, which have no column heads. */
function CardOrder<Row>({
  columns,
  sort,
  onOrder,
}: {
  columns: readonly Column<Row>[];
  sort: Sort | null;
  onOrder: (sort: Sort) => void;
}) {
  const { t } = useTranslation();
  const sortable = columns.filter((column) => column.sortBy !== undefined);
  if (sortable.length === 0) return null;
  const Arrow = sort?.descending ? IconArrowDown : IconArrowUp;
  return (
    <div className="card-order">
      <label>
        {t("sortBy")}{" "}
        <select
          data-view
          value={sort?.key ?? ""}
          onChange={(event) => {
            onOrder({ key: event.currentTarget.value, descending: false });
          }}
        >
          {sort === null && <option value="">{t("unsorted")}</option>}
          {sortable.map((column) => (
            <option key={column.key} value={column.key}>
              {column.header}
            </option>
          ))}
        </select>
      </label>
      {sort !== null && (
        <button
          type="button"
          aria-label={t("reverseOrder")}
          onClick={() => {
            onOrder({ key: sort.key, descending: !sort.descending });
          }}
        >
          <Arrow size={CARD_ICON_PX} aria-hidden />
        </button>
      )}
    </div>
  );
}

function Head<Row>({
  column,
  sort,
  onChoose,
  hint,
}: {
  column: Column<Row>;
  sort: Sort | null;
  onChoose: (key: string) => void;
  hint: string;
}) {
  const isSorted = sort?.key === column.key;
  const order = isSorted ? (sort.descending ? "descending" : "ascending") : "none";
  const Arrow = sort?.descending ? IconArrowDown : IconArrowUp;
  return (
    <div role="columnheader" aria-sort={order} className={column.align === "end" ? "align-end" : undefined}>
      {column.sortBy === undefined ? (
        column.header
      ) : (
        <button
          type="button"
          title={`${hint} ${column.header}`}
          onClick={() => {
            onChoose(column.key);
          }}
        >
          {column.header} {isSorted && <Arrow size={ICON_PX} aria-hidden />}
        </button>
      )}
    </div>
  );
}

/** Returns rows in the order of a column. Unknown values come last in both directions; equal rows keep their order. */
export function sortRows<Row>(
  rows: readonly Row[],
  columns: readonly Column<Row>[],
  sort: Sort | null,
): readonly Row[] {
  const valueOf = columns.find((column) => column.key === sort?.key)?.sortBy;
  if (sort === null || valueOf === undefined) return rows;
  const keyed = rows.map((row) => ({ row, value: valueOf(row) }));
  const sign = sort.descending ? -1 : 1;
  keyed.sort((a, b) => {
    if (a.value === null || b.value === null) return (a.value === null ? 1 : 0) - (b.value === null ? 1 : 0);
    if (typeof a.value === "string" && typeof b.value === "string") return sign * collator.compare(a.value, b.value);
    return sign * (a.value < b.value ? -1 : a.value > b.value ? 1 : 0);
  });
  return keyed.map(({ row }) => row);
}

const collator = new Intl.Collator("en", { numeric: true });
