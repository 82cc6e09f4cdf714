-- If it fails the writer takes back all that its call has done: OR FAIL spares SQLite a copy of every page.
INSERT OR FAIL INTO advance_op VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
